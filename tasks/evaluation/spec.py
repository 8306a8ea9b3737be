"""How a policy is evaluated."""

from __future__ import annotations

from pydantic import Field

from tasks.config import Config, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig


class EvaluationConfig(Config):
    """Held-out evaluation: the same prompts, sampling and seeds for every policy.

    Attributes:
        sampling: k samples of each prompt. Each has a seed of its own, derived from `sampling.seed`, the prompt and
            its number, so that policies are compared on the same draws.
        engine: how the engine runs.
        verifier_workers: processes that judge.
    """

    sampling: SamplingConfig = SamplingConfig(samples=4, seed=0)
    engine: EngineConfig = EngineConfig()
    verifier_workers: RunTime[int] = Field(1, gt=0)
