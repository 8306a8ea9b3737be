"""The pydantic model behind an evaluation file."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from tasks.config import Extendable, RunTime, SpecError
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.pods import PodConfig


class EvaluationSpec(Extendable):
    """Held-out evaluation: the same prompts, sampling and seeds for every policy."""

    folder: ClassVar[Path] = Path(__file__).parents[2] / "workflows" / "evaluations"
    named_by_recipe: ClassVar[bool] = True

    sampling: SamplingConfig = SamplingConfig(samples=4, seed=0)
    """Options of the sampling: `samples` responses to each prompt. Each response has its own seed, derived from
    `sampling.seed`, the prompt and its number, so that policies are compared on the same draws."""
    engine: EngineConfig = EngineConfig()
    """Options of the vLLM engine."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Processes that judge responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Largest share of a policy's responses, in [0, 1], that may be unjudged, because a verifier, its service or a
    reward function failed. Above it the evaluation fails; verdicts that exist are kept, and another run judges the
    rest."""
    pod: RunTime[PodConfig] = PodConfig()
    """Pod in which a policy is evaluated on a cluster."""


def check_of_two(spec: EvaluationSpec) -> None:
    """Check that two policies can be evaluated as `spec` says; a server serves only one.

    Raises:
        SpecError: they cannot.
    """
    if spec.engine.server is not None:
        raise SpecError(
            f"evaluation: engine.server serves {spec.engine.server.model!r} alone, and two policies are compared: "
            "leave it out, or evaluate each by itself with a file of its own (pyflyte run tasks/evaluation/task.py "
            "evaluate_policy), and compare the two tables (compare_policies)"
        )
