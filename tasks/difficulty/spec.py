"""How difficult prompts are found out, and which are kept."""

from __future__ import annotations

from pydantic import Field

from tasks.config import Config, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig


class DifficultySpec(Config):
    """Offline difficulty filtering (OlmoRL, data construction step 2).

    Attributes:
        max_pass_rate: a prompt is kept when its pass rate is strictly below this. The paper excludes "samples that the
            model easily solves (pass rate > 62.5%)"; this project's bound is strict, so that of 8 rollouts 5 passed
            (62.5% exactly) is excluded too.
        sampling: 8 rollouts at temperature 1.0 and top-p 1.0, as in training.
        engine: how the engine runs.
        verifier_workers: processes that judge.
    """

    max_pass_rate: float = Field(0.625, gt=0)
    sampling: SamplingConfig = SamplingConfig(samples=8)
    engine: EngineConfig = EngineConfig()
    verifier_workers: RunTime[int] = Field(1, gt=0)

    @property
    def rollouts(self) -> RolloutSpec:
        """The part that costs a GPU, apart from the threshold."""
        return RolloutSpec(**self.model_dump(exclude={"max_pass_rate"}))


class RolloutSpec(Config):
    """`DifficultySpec` without the threshold: what the rollouts depend on."""

    sampling: SamplingConfig
    engine: EngineConfig
    verifier_workers: RunTime[int]
