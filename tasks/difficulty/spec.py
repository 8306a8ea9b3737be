"""Defines the pydantic models of `difficulty:`, which specify the sampling and the mean scores that are kept."""

from __future__ import annotations

from typing import Self

from pydantic import Field, model_validator

from tasks.config.fields import InItsOrder
from tasks.config.loading import Config, RunTime
from tasks.difficulty.stopping import Bounds
from tasks.generation.config import EngineConfig, SamplingConfig
from tasks.generation.models import ModelSpec
from tasks.generation.vllm_arguments import check_thinking_budget
from tasks.kubernetes.pods import PodConfig


class Variant(Config):
    """Another way to answer the same prompts, to compare pass rates."""

    model: ModelSpec | None = None
    """Optional. Another checkpoint, such as one of another training stage. If null, the recipe's model is used."""
    chat_template_kwargs: dict[str, bool | int | float | str] | None = None
    """Optional. Variables of the chat template, such as `{enable_thinking: true}`, that replace `sampling`'s. If null,
    the ones of `sampling` are used."""

    @model_validator(mode="after")
    def _check_difference(self) -> Self:
        if self.model is None and self.chat_template_kwargs is None:
            raise ValueError("give a model or chat_template_kwargs: it differs in nothing")
        return self


class DifficultySpec(Config):
    """Offline difficulty filtering (OlmoRL, data construction step 2)."""

    max_mean_score: float | None = Field(0.625, gt=0, le=1)
    """Optional. A prompt is kept if the mean score of its rollouts, in [0, 1], is strictly below this value. With a
    verifier that returns 0 or 1 the mean score is the pass rate; for partial scores (code, chat, several rewards) it is
    the value that open-instruct's filter computes and calls pass rate. The paper excludes "samples that the model
    easily solves (pass rate > 62.5%)"; this bound is strict, so that a prompt with 5 passing rollouts out of 8 (exactly
    62.5%) is also excluded. If null, there is no bound, but scores are measured; `difficulty: null` measures no
    scores."""
    min_mean_score: float | None = Field(None, ge=0, lt=1)
    """Optional. A prompt is kept if the mean score of its rollouts, in [0, 1], is strictly above this value. 0 drops
    the prompts whose rollouts all score 0. If null, there is no bound, as in the paper."""
    sampling: SamplingConfig = SamplingConfig(samples=8)
    """Sampling options. By default 8 rollouts of a prompt at temperature 1.0 and top-p 1.0, as in training."""
    unlike_training: RunTime[bool] = False
    """Allow `sampling` to differ from training in length, temperature, top-p, top-k or min-p. The pass rates then
    differ from the ones in training."""
    early_stopping: bool = False
    """Stop sampling a prompt once its remaining rollouts cannot change whether it is kept. The same prompts are kept;
    their pass rates and mean scores come from fewer rollouts (`num_rollouts`). If a reward scores all samples of a
    prompt together (`group: true`), all of them are sampled."""
    engine: EngineConfig = EngineConfig()
    """Options of the vLLM engine."""
    shard_prompts: RunTime[int] = Field(10_000, gt=0)
    """Maximum number of prompts of a shard; small sources share one. On a cluster, each shard is sampled in a separate
    pod. Each shard is retried and cached separately."""
    shards_at_once: RunTime[int] = Field(0, ge=0)
    """Maximum number of shards that are sampled at the same time on a cluster. If 0, all of them."""
    verifier_workers: RunTime[int] = Field(1, gt=0)
    """Number of processes that score responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Maximum share of a shard's rollouts, in [0, 1], that may have no score because a verifier, its service or a
    reward function failed. Above it the stage fails; existing scores are kept, and another run scores the rest."""
    compared: InItsOrder[dict[str, Variant]] = Field(default={})
    """Variants by name: other checkpoints, or other variables of the chat template. Their pass rates are written to a
    separate table (`compared`) and do not affect which prompts are selected."""
    pod: RunTime[PodConfig] = PodConfig()
    """Pods in which shards are sampled on a cluster."""

    @model_validator(mode="after")
    def _check_bounds(self) -> Self:
        low, high = self.min_mean_score, self.max_mean_score
        if low is not None and high is not None and low >= high:
            raise ValueError(f"min_mean_score ({low:g}) must be below max_mean_score ({high:g}): nothing would be kept")
        return self

    @model_validator(mode="after")
    def _check_thinking_end(self) -> Self:
        if self.engine.server is None:  # a server has its own arguments
            check_thinking_budget(self.sampling.vllm, self.engine.vllm)
        return self

    @model_validator(mode="after")
    def _check_server(self) -> Self:
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
        """The options that rollouts depend on. The bounds are only included if they stop the sampling."""
        return RolloutSpec(
            sampling=self.sampling,
            engine=self.engine,
            verifier_workers=self.verifier_workers,
            max_unjudged=self.max_unjudged,
            stop_at=self.bounds if self.early_stopping else None,
        )

    def build_rollout_spec(self, variant: Variant) -> RolloutSpec:
        """Return the spec of a variant's rollouts. All samples are generated, so that pass rates can be compared."""
        sampling = self.sampling
        if variant.chat_template_kwargs is not None:
            sampling = sampling.model_copy(update={"chat_template_kwargs": variant.chat_template_kwargs})
        return self.rollout_spec.model_copy(update={"sampling": sampling, "stop_at": None})


class RolloutSpec(Config):
    """The options of `DifficultySpec` that the rollouts depend on."""

    sampling: SamplingConfig
    """Sampling options."""
    engine: EngineConfig
    """Options of the vLLM engine."""
    verifier_workers: RunTime[int]
    """Number of processes that score responses."""
    max_unjudged: float = Field(0.1, ge=0, le=1)
    """Maximum share of a shard's rollouts, in [0, 1], that may have no score. Above it their scoring fails."""
    stop_at: Bounds | None = None
    """Optional. Bounds that stop the sampling of a prompt once it is decided whether they keep it. If None, all samples
    are generated."""
