"""How difficult prompts are found out, and which are kept."""

from __future__ import annotations

from pydantic import Field

from tasks.config import Config, RunTime
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.pods import PodConfig


class DifficultySpec(Config):
    """Offline difficulty filtering (OlmoRL, data construction step 2).

    Attributes:
        max_pass_rate: a prompt is kept when its pass rate is strictly below this. The paper excludes "samples that the
            model easily solves (pass rate > 62.5%)"; this project's bound is strict, so that of 8 rollouts 5 passed
            (62.5% exactly) is excluded too.
        sampling: 8 rollouts at temperature 1.0 and top-p 1.0, as in training.
        engine: how the engine runs.
        verifier_workers: processes that judge.
        pod: where it runs on a cluster.
    """

    max_pass_rate: float = Field(0.625, gt=0)
    sampling: SamplingConfig = SamplingConfig(samples=8)
    engine: EngineConfig = EngineConfig()
    verifier_workers: RunTime[int] = Field(1, gt=0)
    pod: RunTime[PodConfig] = PodConfig()

    @property
    def rollouts(self) -> RolloutSpec:
        """The part that costs a GPU, apart from the threshold."""
        return RolloutSpec(**{name: getattr(self, name) for name in RolloutSpec.model_fields})


class RolloutSpec(Config):
    """What the rollouts depend on: `DifficultySpec` without the threshold and the pod."""

    sampling: SamplingConfig
    engine: EngineConfig
    verifier_workers: RunTime[int]
