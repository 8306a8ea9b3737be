"""How difficult prompts are found out, and which are kept."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime
from tasks.difficulty.stopping import Bounds
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.models import ModelSpec
from tasks.pods import PodConfig


class Variant(Config):
    """Another way to answer the same prompts, whose pass rates are compared with those that select."""

    model: ModelSpec | None = None
    """Another checkpoint: of another stage of training, say. None: the recipe's."""
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    """In place of those of `sampling`: `{enable_thinking: true}`, say."""

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if self.model is None and self.chat_template_kwargs is None:
            raise ValueError("give a model or chat_template_kwargs: it differs in nothing")
        return self


class DifficultySpec(Config):
    """Offline difficulty filtering (OlmoRL, data construction step 2)."""

    max_pass_rate: float = Field(0.625, gt=0)
    """A prompt is kept when its pass rate is strictly below this. The paper excludes "samples that the model easily
    solves (pass rate > 62.5%)"; this project's bound is strict, so that of 8 rollouts 5 passed (62.5% exactly) is
    excluded too."""
    min_pass_rate: float | None = Field(None, ge=0, lt=1)
    """And strictly above this: 0 drops what the model never solves. None: no bound, as in the paper."""
    sampling: SamplingConfig = SamplingConfig(samples=8)
    """8 rollouts at temperature 1.0 and top-p 1.0, as in training."""
    unlike_training: RunTime[bool] = False
    """Whether `sampling` may differ from training's in temperature, top-p, top-k or min-p. Pass rates are then not
    those that training will see."""
    early_stopping: bool = False
    """Whether a prompt's sampling ends once the remaining rollouts cannot change whether it is kept. The same prompts
    are kept; their pass rates come from fewer rollouts (`num_rollouts`)."""
    engine: EngineConfig = EngineConfig()
    """How the engine runs."""
    shard_prompts: RunTime[int] = Field(10_000, gt=0)
    """Prompts of one source are sampled in shards of so many, small sources together; each shard is a pod of its own on
    a cluster, retried and cached by itself."""
    shards_at_once: RunTime[int] = Field(0, ge=0)
    """Shards that are sampled at the same time on a cluster; 0: as many as there are."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Processes that judge."""
    compared: dict[str, Variant] = Field(default={})
    """Other checkpoints, or other ways to use the template, by name; their pass rates are a table of their own
    (`compared`) and select nothing."""
    pod: RunTime[PodConfig] = PodConfig()
    """Where it runs on a cluster."""

    @model_validator(mode="after")
    def _something_is_kept(self) -> Self:
        if self.min_pass_rate is not None and self.min_pass_rate >= self.max_pass_rate:
            raise ValueError(
                f"min_pass_rate ({self.min_pass_rate:g}) must be below max_pass_rate ({self.max_pass_rate:g}): nothing "
                "would be kept"
            )
        return self

    @property
    def bounds(self) -> Bounds:
        """What is kept."""
        return Bounds(max_pass_rate=self.max_pass_rate, min_pass_rate=self.min_pass_rate)

    @property
    def rollouts(self) -> RolloutSpec:
        """The part that costs a GPU; without the bounds, unless they end the sampling."""
        return RolloutSpec(
            sampling=self.sampling,
            engine=self.engine,
            verifier_workers=self.verifier_workers,
            stop_at=self.bounds if self.early_stopping else None,
        )

    def rollouts_of(self, variant: Variant) -> RolloutSpec:
        """The same for a variant, of which all samples are drawn: only whole pass rates can be compared."""
        sampling = self.sampling
        if variant.chat_template_kwargs is not None:
            sampling = sampling.model_copy(update={"chat_template_kwargs": variant.chat_template_kwargs})
        return self.rollouts.model_copy(update={"sampling": sampling, "stop_at": None})


class RolloutSpec(Config):
    """What the rollouts depend on."""

    sampling: SamplingConfig
    """See `DifficultySpec`."""
    engine: EngineConfig
    """See `DifficultySpec`."""
    verifier_workers: RunTime[int]
    """See `DifficultySpec`."""
    stop_at: Bounds | None = None
    """Bounds that end the sampling of a prompt once its fate is decided; None: all samples are drawn."""
