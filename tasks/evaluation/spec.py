"""How a policy is evaluated."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

from pydantic import Field

from tasks.config import Extendable, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.pods import PodConfig


class EvaluationSpec(Extendable):
    """Held-out evaluation: the same prompts, sampling and seeds for every policy."""

    folder: ClassVar[Path] = Path(__file__).parents[2] / "workflows" / "evaluations"
    named_by_recipe: ClassVar[bool] = True

    sampling: SamplingConfig = SamplingConfig(samples=4, seed=0)
    """K samples of each prompt. Each has a seed of its own, derived from `sampling.seed`, the prompt and its number, so
    that policies are compared on the same draws."""
    engine: EngineConfig = EngineConfig()
    """How the engine runs."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Processes that judge."""
    pod: RunTime[PodConfig] = PodConfig()
    """Where each policy is evaluated on a cluster."""
