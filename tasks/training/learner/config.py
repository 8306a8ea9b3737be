"""Options of the learner: where it runs, what it trains, and how it steps."""

from __future__ import annotations

import math
from typing import Literal, Self

from pydantic import Field, model_validator

from tasks.config import Config, RunTime


class OptimizerConfig(Config):
    """AdamW with a schedule."""

    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """What follows the warm-up: `constant`, or `linear` or `cosine` decay that would reach 0 one step after the last.
    """
    warmup_steps: int = Field(0, ge=0)
    """Steps of linear warm-up; the first is at `learning_rate / warmup_steps`."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """As in AdamW."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """As in AdamW."""
    eps: float = Field(1e-8, gt=0)
    """As in AdamW."""
    weight_decay: float = Field(0.0, ge=0)
    """As in AdamW."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Gradients are scaled down to this global norm."""


class LoraConfig(Config):
    """LoRA (Hu et al. 2021, arXiv:2106.09685): trains `alpha / rank * B A` beside frozen weights, without dropout.

    Engines run the adapter unmerged; what training hands over is the merged policy, in the type of the checkpoint, and
    the adapter beside it.
    """

    rank: int = Field(gt=0, le=512)
    """Rows of A and columns of B."""
    alpha: int = Field(gt=0)
    """Scale of the product, over `rank`."""
    target_modules: list[str] | None = Field(None, min_length=1)
    """Names of linear layers, such as `q_proj`. None: every one but the head."""

    @model_validator(mode="after")
    def _no_head(self) -> Self:
        if self.target_modules and "lm_head" in self.target_modules:
            raise ValueError("lora.target_modules = lm_head: log-probabilities are taken from the head as it is")
        return self


class LearnerConfig(Config):
    """The learner: DeepSpeed ZeRO over Ray actors."""

    ranks: RunTime[int] = Field(1, gt=0)
    """Learner processes, one GPU each where there are GPUs."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of weights and activations, beside float32 master weights; `auto`: bfloat16, or float32 on a processor that
    computes bfloat16 slowly (`tasks.machine.precision`). The policy is handed over in it."""
    zero_stage: RunTime[Literal[1, 2, 3]] = 2
    """1 shards optimizer state, 2 gradients too, 3 parameters too."""
    persistence_threshold: RunTime[int] = Field(100_000, ge=0)
    """With `zero_stage` 3, tensors of fewer elements are whole on every rank."""
    micro_batch_tokens: RunTime[int] = Field(2048, gt=0)
    """Tokens of one forward pass; sequences are packed up to it."""
    logprob_chunk_tokens: RunTime[int] = Field(1024, gt=0)
    """Tokens whose logits exist at a time (`tasks.training.learner.logprobs`)."""
    gradient_checkpointing: RunTime[bool] = False
    """Recompute activations in the backward pass."""
    cpus: RunTime[float] = Field(1.0, ge=0)
    """CPU cores that a rank reserves in Ray."""
    cpu_threads: RunTime[int | None] = Field(None, gt=0)
    """Torch threads of a rank on a machine without a GPU; None leaves torch's default."""
    init_timeout_seconds: RunTime[float] = Field(600, gt=0)
    """How long ranks may wait for room in the cluster, load the model and find each other."""
    max_restarts: RunTime[int] = Field(3, ge=0)
    """How often within `restart_window_seconds` the learner goes back to the newest checkpoint and takes the steps
    since then again, because a rank was lost or a step was not finite; then the run ends."""
    restart_window_seconds: RunTime[float] = Field(3600, gt=0)


class UpdatesConfig(Config):
    """Optimizer steps on one batch of rollouts.

    With more than one, the learner takes the log-probabilities of the whole batch before the first (`old_logprobs`), so
    that the ratio to them and the correction for the engine stay two factors. The learning rate is that of the batch.
    """

    minibatches: int = Field(1, ge=1)
    """Parts of equally many groups that the batch is cut into, one optimizer step each (DAPO: 16)."""
    epochs: int = Field(1, ge=1)
    """Passes over the parts."""


def learning_rate(step: int, config: OptimizerConfig, steps: int) -> float:
    """The learning rate of the optimizer steps of batch `step` (counted from 0) of `steps`."""
    if step < config.warmup_steps:
        return config.learning_rate * (step + 1) / config.warmup_steps
    progress = (step - config.warmup_steps) / max(1, steps - config.warmup_steps)
    match config.schedule:
        case "constant":
            return config.learning_rate
        case "linear":
            return config.learning_rate * (1 - progress)
        case "cosine":
            return config.learning_rate * 0.5 * (1 + math.cos(math.pi * progress))
