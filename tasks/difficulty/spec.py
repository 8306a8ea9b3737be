"""The pydantic models behind `difficulty:`, which name the sampling and the mean scores that are kept."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime
from tasks.config_fields import InItsOrder
from tasks.difficulty.stopping import Bounds
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.models import ModelSpec
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.pods import PodConfig


class Variant(Config):
    """Another way to answer the same prompts, for a comparison of pass rates."""

    model: ModelSpec | None = None
    """Another checkpoint, such as one of another stage of training; None: the recipe's."""
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    """Variables of the chat template, such as `{enable_thinking: true}`, that replace those of `sampling`; None: those
    of `sampling`."""

    @model_validator(mode="after")
    def _differs(self) -> Self:
        if self.model is None and self.chat_template_kwargs is None:
            raise ValueError("give a model or chat_template_kwargs: it differs in nothing")
        return self


class DifficultySpec(Config):
    """Offline difficulty filtering (OlmoRL, data construction step 2)."""

    max_mean_score: float | None = Field(0.625, gt=0, le=1)
    """Mean score of a prompt's rollouts, in [0, 1], strictly below which it is kept. With a verifier that gives 0 or 1
    it is the pass rate; for partial scores (code, chat, several rewards) it is what open-instruct's filter computes and
    calls so. The paper excludes "samples that the model easily solves (pass rate > 62.5%)"; this bound is strict, so
    that a prompt of which 5 of 8 rollouts pass (62.5% exactly) is excluded, too. None: no bound, though scores are
    measured; `difficulty: null` measures none."""
    min_mean_score: float | None = Field(None, ge=0, lt=1)
    """Mean score of a prompt's rollouts, in [0, 1], strictly above which it is kept: 0 drops the prompts whose rollouts
    all score 0. None: no bound, as in the paper."""
    sampling: SamplingConfig = SamplingConfig(samples=8)
    """Options of the sampling: by default 8 rollouts of a prompt at temperature 1.0 and top-p 1.0, as in training."""
    unlike_training: RunTime[bool] = False
    """Allow `sampling` to differ from training's in length, temperature, top-p, top-k or min-p; the pass rates are then
    not those that training will meet."""
    early_stopping: bool = False
    """End the sampling of a prompt once its remaining rollouts cannot change whether it is kept. The same prompts are
    kept; their pass rates and mean scores come from fewer rollouts (`num_rollouts`). All samples of a prompt are drawn
    where a reward judges them together (`group: true`)."""
    engine: EngineConfig = EngineConfig()
    """Options of the vLLM engine."""
    shard_prompts: RunTime[int] = Field(10_000, gt=0)
    """Prompts of a shard, at most; small sources share one. A shard is sampled in a pod of its own on a cluster, and is
    retried and cached by itself."""
    shards_at_once: RunTime[int] = Field(0, ge=0)
    """Shards that are sampled at the same time on a cluster, at most; 0: all of them."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Processes that judge responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Largest share of a shard's rollouts, in [0, 1], that may be unjudged, because a verifier, its service or a reward
    function failed. Above it the stage fails; verdicts that exist are kept, and another run judges the rest."""
    compared: InItsOrder[dict[str, Variant]] = Field(default={})
    """Variants by name: other checkpoints, or other variables of the chat template. Their pass rates become a table of
    their own (`compared`) and select no prompt."""
    pod: RunTime[PodConfig] = PodConfig()
    """Pods in which shards are sampled on a cluster."""

    @model_validator(mode="after")
    def _something_is_kept(self) -> Self:
        low, high = self.min_mean_score, self.max_mean_score
        if low is not None and high is not None and low >= high:
            raise ValueError(f"min_mean_score ({low:g}) must be below max_mean_score ({high:g}): nothing would be kept")
        return self

    @model_validator(mode="after")
    def _ends_thinking(self) -> Self:
        if self.engine.server is None:  # a server has its own arguments
            check_thinking_budget(self.sampling.vllm, self.engine.vllm)
        return self

    @model_validator(mode="after")
    def _has_a_server_of_all_checkpoints(self) -> Self:
        others = [name for name, variant in self.compared.items() if variant.model is not None]
        if self.engine.server is not None and others:
            raise ValueError(
                f"compared.{others[0]}.model: another checkpoint, and engine.server serves "
                f"{self.engine.server.model!r} alone; leave one of the two out"
            )
        return self

    @property
    def bounds(self) -> Bounds:
        """The mean scores that are kept."""
        return Bounds(max_mean_score=self.max_mean_score, min_mean_score=self.min_mean_score)

    @property
    def rollout_spec(self) -> RolloutSpec:
        """The part that rollouts depend on; it has the bounds only where they end the sampling."""
        return RolloutSpec(
            sampling=self.sampling,
            engine=self.engine,
            verifier_workers=self.verifier_workers,
            max_unjudged=self.max_unjudged,
            stop_at=self.bounds if self.early_stopping else None,
        )

    def rollout_spec_of(self, variant: Variant) -> RolloutSpec:
        """Return the spec of a variant's rollouts: all samples are drawn, because only whole pass rates compare."""
        sampling = self.sampling
        if variant.chat_template_kwargs is not None:
            sampling = sampling.model_copy(update={"chat_template_kwargs": variant.chat_template_kwargs})
        return self.rollout_spec.model_copy(update={"sampling": sampling, "stop_at": None})


class RolloutSpec(Config):
    """The part of `DifficultySpec` that the rollouts depend on."""

    sampling: SamplingConfig
    """Options of the sampling."""
    engine: EngineConfig
    """Options of the vLLM engine."""
    verifier_workers: RunTime[int]
    """Processes that judge responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Largest share of a shard's rollouts, in [0, 1], that may be unjudged; above it their judging fails."""
    stop_at: Bounds | None = None
    """Bounds that end the sampling of a prompt once it is decided whether they keep it; None: all samples are drawn."""
