"""Defines the options of the evaluation of one policy."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.config.loading import Config, RunTime, SpecError
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.kubernetes.pods import PodConfig
from tasks.storage.sent_files import FilePath


class EvaluationSpec(Config):
    """The evaluation, which uses the same prompts, sampling and seeds for every policy."""

    sampling: SamplingConfig = SamplingConfig(samples=4, seed=0)
    """Options for sampling the held-out prompts: `samples` responses to each; benchmarks have their own options. Each
    response has its own seed, derived from `sampling.seed`, the prompt and the sample number, so that policies are
    compared with the same random numbers."""
    engine: EngineConfig = EngineConfig()
    """Options of the vLLM engine, which answers the held-out prompts and all benchmarks of a policy."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Number of processes that score responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Maximum share of a policy's responses, in [0, 1], that may have no score because a verifier, its service or a
    reward function failed. Above it the evaluation fails; existing scores are kept, and another run scores the rest."""
    pod: RunTime[PodConfig] = PodConfig()
    """Pod in which a policy is evaluated on a cluster."""

    @model_validator(mode="after")
    def _check_thinking_end(self) -> Self:
        if self.engine.server is None:  # a server has its own arguments
            check_thinking_budget(self.sampling.vllm, self.engine.vllm)
        return self


class ComparedBenchmark(Config):
    """The options of a benchmark for the comparison of policies."""

    name: str
    """Name of the benchmark."""
    majority: list[int] = []  # noqa: RUF012 (pydantic copies defaults)
    """The k of majority@k."""
    by: list[str] = []  # noqa: RUF012 (pydantic copies defaults)
    """The kept columns by whose values metrics are also computed."""
    margin: float | None = None
    """Optional. Maximum loss of pass rate, in [0, 1], with which a benchmark counts as maintained. If None, this is not
    tested."""
    card: str = ""
    """URL of the public page that describes the questions."""
    licence: str = ""
    """Licence of the questions."""
    length_control: FilePath | None = None
    """Optional. File with the data for the length-controlled win rate. If None, it is not computed."""
    fingerprint: str | None = None
    """Digest of that file, if it is on a local file system."""
    rows: int | None = None
    """Number of questions according to the card, or None if it is unknown or only some of them are used."""

    def describe_shortfall(self, asked: int) -> str | None:
        """Return a message if the number of questions differs from the card's, else None."""
        if self.rows in (None, asked):
            return None
        return f"benchmark {self.name!r}: {asked} questions are used, and {self.card} counts {self.rows}"


class ComparedBenchmarks(Config):
    """The benchmarks on which policies are compared, in addition to the held-out prompts."""

    benchmarks: list[ComparedBenchmark] = []  # noqa: RUF012 (pydantic copies defaults)
    """The benchmarks, in the order of their tables of questions."""


def check_server(spec: EvaluationSpec) -> None:
    """Check that several policies can be evaluated with `spec`. A server serves only one policy.

    Raises:
        SpecError: `spec` uses a server.
    """
    if spec.engine.server is not None:
        raise SpecError(
            f"evaluation: engine.server serves {spec.engine.server.model!r} alone, and policies are compared: leave "
            "it out, or evaluate each alone with its own file (pyflyte run tasks/evaluation/task.py "
            "evaluate_policy), and compare their tables (compare_policies)"
        )
