"""Options of the evaluation of one policy."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime, SpecError
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.pods import PodConfig
from tasks.storage.sent_files import FilePath


class EvaluationSpec(Config):
    """Evaluation: the same prompts, sampling and seeds for every policy."""

    sampling: SamplingConfig = SamplingConfig(samples=4, seed=0)
    """Options of the sampling of the held-out prompts: `samples` responses to each; a benchmark has its own. Each
    response has its own seed, derived from `sampling.seed`, the prompt and its number, so that policies are compared on
    the same draws."""
    engine: EngineConfig = EngineConfig()
    """Options of the vLLM engine, which answers the held-out prompts and all benchmarks of a policy."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Processes that judge responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Largest share of a policy's responses, in [0, 1], that may be unjudged, because a verifier, its service or a
    reward function failed. Above it the evaluation fails; verdicts that exist are kept, and another run judges the
    rest."""
    pod: RunTime[PodConfig] = PodConfig()
    """Pod in which a policy is evaluated on a cluster."""

    @model_validator(mode="after")
    def _ends_thinking(self) -> Self:
        if self.engine.server is None:  # a server has its own arguments
            check_thinking_budget(self.sampling.vllm, self.engine.vllm)
        return self


class ComparedBenchmark(Config):
    """A benchmark as policies are compared on it."""

    name: str
    """Name of the benchmark."""
    majority: list[int] = []  # noqa: RUF012 (pydantic copies defaults)
    """The k of majority@k."""
    margin: float | None = None
    """Points of pass rate, in [0, 1], that a policy may lose and still have maintained the benchmark; None: any."""
    card: str = ""
    """Address of the public page that describes the questions."""
    licence: str = ""
    """Licence of the questions."""
    length_control: FilePath | None = None
    """File of the data behind the length-controlled win rate; None: the benchmark has none."""
    fingerprint: str | None = None
    """Digest of that file where it lies on a file system here."""
    rows: int | None = None
    """Questions that the card counts; None where they are not known, or where only a part of them is asked."""

    def shortfall(self, asked: int) -> str | None:
        """Return one sentence where the number of questions that are asked is not the card's, else None."""
        if self.rows in (None, asked):
            return None
        return f"benchmark {self.name!r}: {asked} questions are asked, and {self.card} counts {self.rows}"


class ComparedBenchmarks(Config):
    """The benchmarks on which policies are compared beside the held-out prompts."""

    benchmarks: list[ComparedBenchmark] = []  # noqa: RUF012 (pydantic copies defaults)
    """The benchmarks, in the order of their tables of questions."""


def check_server(spec: EvaluationSpec) -> None:
    """Check that several policies can be evaluated as `spec` says; a server serves only one.

    Raises:
        SpecError: they cannot.
    """
    if spec.engine.server is not None:
        raise SpecError(
            f"evaluation: engine.server serves {spec.engine.server.model!r} alone, and policies are compared: leave "
            "it out, or evaluate each by itself with a file of its own (pyflyte run tasks/evaluation/task.py "
            "evaluate_policy), and compare their tables (compare_policies)"
        )
