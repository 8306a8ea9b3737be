"""Defines the options of the learner: its resources, its optimizer, and the parameters that it trains."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import math
from typing import Literal, Self

from pydantic import Field, StrictBool, model_validator

from tasks.config.fields import Arguments
from tasks.config.loading import Config, RunTime
from tasks.failures import MistakeError
from tasks.recipe.deepspeed_keys import check_keys

DENSE_TOKENS = 4096
"""Largest number of tokens of a row for attention with a dense mask on a GPU, since the mask's size is its square."""

CHUNK_ON_GPU, CHUNK_ON_CPU = 4096, 1024
"""Default number of tokens whose logits are in memory at a time."""


class DenseAttentionError(MistakeError):
    """The learner would need dense attention on a GPU, as for float32, and rows are too long for its quadratic mask."""


class OptimizerConfig(Config):
    """The optimizer: AdamW (Loshchilov and Hutter 2019, arXiv:1711.05101) with a learning rate schedule."""

    learning_rate: float = Field(1e-6, gt=0)
    """Peak learning rate, at the end of the warm-up."""
    schedule: Literal["constant", "linear", "cosine"] = "constant"
    """Schedule of the learning rate after the warm-up: `constant`, or a `linear` or `cosine` decay that would reach 0
    one step after the last."""
    warmup_steps: int = Field(0, ge=0)
    """Number of batches of linear warm-up; the first has `learning_rate / warmup_steps`. All optimizer steps on a batch
    (`updates`) have the same learning rate. If 0, warm-up is off."""
    beta1: float = Field(0.9, ge=0, lt=1)
    """Decay rate of AdamW's running mean of the gradient."""
    beta2: float = Field(0.999, ge=0, lt=1)
    """Decay rate of AdamW's running mean of the squared gradient."""
    eps: float = Field(1e-8, gt=0)
    """Number that AdamW adds to the root of the mean squared gradient before dividing by it."""
    weight_decay: float = Field(0.0, ge=0)
    """Decoupled weight decay of AdamW: every step subtracts `learning_rate * weight_decay` times each weight."""
    max_grad_norm: float = Field(1.0, gt=0)
    """Largest global norm of the gradient; a larger gradient is scaled down to it."""


class LoraConfig(Config):
    """LoRA (Hu et al. 2021, arXiv:2106.09685): adds a trained `alpha / rank * B A` to frozen weights, without dropout.

    Engines use the unmerged adapter. Training returns the merged policy, in the type of the checkpoint, and the adapter
    next to it.
    """

    rank: int = Field(gt=0, le=512)
    """Rank of the update: the number of rows of A and of columns of B."""
    alpha: int = Field(gt=0)
    """Scale of the update, which is `alpha / rank * B A`."""
    target_modules: list[str] | None = Field(None, min_length=1)
    """Names of the linear layers that get an adapter, such as `q_proj`. If null, all except the head. Experts that
    transformers stores in one tensor are not linear layers and get no adapter."""

    @model_validator(mode="after")
    def _check_no_head(self) -> Self:
        if self.target_modules and "lm_head" in self.target_modules:
            raise ValueError("lora.target_modules = lm_head: log-probabilities are taken from the head as it is")
        return self


class LearnerConfig(Config):
    """The learner: DeepSpeed ZeRO on Ray actors."""

    ranks: RunTime[int] = Field(1, gt=0)
    """Number of learner processes. With GPUs, each uses one."""
    dtype: Literal["auto", "bfloat16", "float32"] = "auto"
    """Type of weights and activations, and of the resulting policy; in addition there are float32 master weights.
    `auto`: bfloat16, or float32 on a processor that computes bfloat16 slowly (`tasks.machine.precision`)."""
    zero_stage: RunTime[Literal[1, 2, 3]] = 2
    """Stage of ZeRO (Rajbhandari et al. 2020, arXiv:1910.02054): 1 shards the optimizer's state over the ranks, 2 the
    gradients too, 3 the parameters too."""
    persistence_threshold: RunTime[int] = Field(100_000, ge=0)
    """Number of elements below which a parameter is not sharded; only used with `zero_stage` 3."""
    micro_batch_tokens: RunTime[int] = Field(2048, gt=0)
    """Largest number of tokens in one forward pass. Sequences are packed up to it, and the longest must fit."""
    logprob_chunk_tokens: RunTime[int | None] = Field(None, gt=0)
    """Number of tokens whose logits are in memory at a time. A smaller number saves memory and does not change the
    results (`tasks.training.learner.logprobs`). If null, 4,096 on a GPU, and 1,024 without one."""
    gradient_checkpointing: RunTime[bool] = False
    """If true, recompute activations in the backward pass instead of storing them: less memory, more time."""
    checkpoint_every_n_layers: RunTime[int] = Field(1, gt=0)
    """With `gradient_checkpointing`, the first of every n layers is recomputed, and activations of the others are
    stored: a larger number takes more memory (`rlvr plan`) and less time. 1 recomputes all layers."""
    offload_activations: RunTime[bool] = False
    """If true, keep what `gradient_checkpointing` stores, the inputs of all layers, in main memory until the backward
    pass needs it. This does not change the results, and requires `gradient_checkpointing`."""
    torch_compile: RunTime[bool] = False
    """If true, compile the layers of the model with `torch.compile`: the first steps take minutes longer, the others
    less time on a GPU. This requires a C++ compiler on the learner's machines and `zero_stage` 1 or 2, since stage 3
    gathers parameters in the middle of a layer."""
    attention: RunTime[Literal["auto", "fa2", "fa4"]] = "auto"
    """Kernels of attention on a GPU in 16 bits: `fa2` (FlashAttention 2, part of torch), or `fa4` (FlashAttention 4,
    the extra `fa4`), which takes less time and needs compute capability 9 or 10 (H100, B200). `auto`: `fa4` if it is
    installed, supports the GPU, the type and the model's heads, and is as exact as plain attention on random tensors,
    else `fa2`. A run with `fa4` fails if it cannot be used."""
    fused_layers: RunTime[StrictBool | Literal["auto"]] = "auto"
    """Use of fused functions in the layers: norms, rotary embedding, and the product of gated MLPs
    (`tasks.training.learner.fused_layers`). They take less time on a GPU, and a function is only replaced if the error
    of its results, compared with float64, is at most twice the original's. `auto`: if there is a GPU and
    `torch_compile`, which fuses whole layers, is off. true: always; the run fails if the model has no such layers.
    false: never. All but the norms need a compiler on the learner's machines: a C++ compiler, and Triton on GPUs."""
    liger: RunTime[StrictBool | Literal["auto"]] = "auto"
    """Use of the loss kernel of `liger-kernel` (arXiv:2410.10989), which saves memory on a GPU. `auto`: if it is
    installed and there is a GPU. true: always; without the package or a GPU, the run fails. false: never."""
    deepspeed: Arguments = Field({})
    """More keys of DeepSpeed's configuration, which are merged into the learner's, such as `{zero_optimization:
    {overlap_comm: true, offload_optimizer: {device: cpu}}}`. Parsing a recipe fails for keys that DeepSpeed does not
    know (and would ignore), that another option sets, or that have no effect here."""
    cpus: RunTime[float] = Field(1.0, ge=0)
    """CPU cores that a rank reserves in Ray."""
    cpu_threads: RunTime[int | None] = Field(None, gt=0)
    """Number of torch threads of a rank on a machine without a GPU. If null, torch's default."""
    init_timeout_seconds: RunTime[float] = Field(600, gt=0)
    """Seconds within which all ranks must get resources in the cluster, connect to each other and load the model."""
    max_restarts: RunTime[int] = Field(3, ge=0)
    """Largest number of restarts of the learner within `restart_window_seconds`, and of restarts without a new step
    between them; one more ends the run. A restart, after a lost rank or a non-finite step, loads the newest checkpoint
    and repeats the steps since then."""
    restart_window_seconds: RunTime[float] = Field(3600, gt=0)
    """Seconds after which a restart of the learner no longer counts against `max_restarts`."""

    @model_validator(mode="after")
    def _check_deepspeed(self) -> Self:
        try:
            check_keys(self.deepspeed, self.zero_stage)
        except ValueError as error:
            raise ValueError(f"learner.deepspeed: {error}") from None
        if self.ranks > self.ranks_with_a_copy and self.ranks % self.ranks_with_a_copy:
            raise ValueError(
                f"learner.deepspeed: zero_optimization.zero_hpz_partition_size = {self.ranks_with_a_copy} must divide "
                f"learner.ranks = {self.ranks}"
            )
        return self

    @model_validator(mode="after")
    def _check_offload(self) -> Self:
        if self.offload_activations and not self.gradient_checkpointing:
            raise ValueError(
                "learner.offload_activations: without gradient checkpointing, copies of weights would be moved too; "
                "give gradient_checkpointing: true"
            )
        return self

    @model_validator(mode="after")
    def _check_recomputed_layers(self) -> Self:
        if self.checkpoint_every_n_layers == 1:
            return self
        if not self.gradient_checkpointing:
            raise ValueError(
                f"learner.checkpoint_every_n_layers = {self.checkpoint_every_n_layers}: no layer is recomputed; give "
                "gradient_checkpointing: true"
            )
        if self.offload_activations:
            raise ValueError(
                f"learner.checkpoint_every_n_layers = {self.checkpoint_every_n_layers}: with offload_activations, "
                "copies of the weights of the other layers would be moved too; leave one of them out"
            )
        return self

    @model_validator(mode="after")
    def _check_compiled_layers(self) -> Self:
        if self.torch_compile and self.zero_stage == 3:
            raise ValueError(
                "learner.torch_compile: ZeRO 3 gathers parameters in the midst of a layer, which cannot be compiled; "
                "give zero_stage 1 or 2"
            )
        return self

    @model_validator(mode="after")
    def _check_fused_layers(self) -> Self:
        if self.torch_compile and self.fused_layers is True:
            raise ValueError("learner.fused_layers = true: torch_compile fuses whole layers already; set it to auto")
        return self

    def fuses_layers(self, *, gpu: bool) -> bool:
        """Return whether functions of layers are replaced by fused ones; `gpu` is whether the learner has GPUs."""
        return gpu and not self.torch_compile if self.fused_layers == "auto" else self.fused_layers

    @property
    def ranks_with_a_copy(self) -> int:
        """Number of ranks that have a second copy of the weights together, with ZeRO 3 (`deepspeed`), or 1."""
        return int(self.deepspeed.get("zero_optimization", {}).get("zero_hpz_partition_size", 1))

    def chunk_tokens(self, *, gpu: bool) -> int:
        """Return `logprob_chunk_tokens`, or its default for a learner with or without GPUs."""
        return self.logprob_chunk_tokens or (CHUNK_ON_GPU if gpu else CHUNK_ON_CPU)

    @property
    def offloads_optimizer(self) -> bool:
        """True if DeepSpeed keeps the optimizer's state in main memory (`deepspeed`)."""
        offload = self.deepspeed.get("zero_optimization", {}).get("offload_optimizer", {})
        return bool(offload.get("device", "none") == "cpu")


class UpdatesConfig(Config):
    """The optimizer steps on one batch of rollouts: `minibatches * epochs` steps.

    With more than one, the learner computes the log-probabilities of the whole batch before the first (`old_logprobs`),
    so that the importance ratio and the correction for the engine stay separate factors. All steps on a batch have the
    same learning rate.
    """

    minibatches: int = Field(1, ge=1)
    """Number of mini-batches, with equally many groups, into which a batch is split, with one optimizer step each
    (DAPO: 16)."""
    epochs: int = Field(1, ge=1)
    """Number of passes over the mini-batches."""


def check_dense_attention(config: LearnerConfig) -> None:
    """Check that rows are short enough for attention with a dense mask, which a GPU uses for float32.

    Raises:
        DenseAttentionError: rows are too long.
    """
    if config.micro_batch_tokens > DENSE_TOKENS:
        raise DenseAttentionError(
            f"learner.micro_batch_tokens = {config.micro_batch_tokens:,}: on a GPU, packed rows of learner.dtype "
            f"= {config.dtype} need an attention mask of {config.micro_batch_tokens:,} x "
            f"{config.micro_batch_tokens:,}, which is refused beyond {DENSE_TOKENS:,} tokens; give learner.dtype = "
            "bfloat16 (on NVIDIA's Ampere or later), or shorter rows"
        )


def check_liger(config: LearnerConfig, *, gpu: bool) -> None:
    """Check that Liger's kernel can run on this machine if `learner.liger` is true.

    Args:
        config: options of the learner.
        gpu: whether the learner has GPUs.

    Raises:
        MistakeError: there is no GPU, or `liger-kernel` is not installed.
    """
    if config.liger is not True:
        return
    if not gpu:
        raise MistakeError("learner.liger = true: its kernel needs a GPU, and the learner has none; set it to auto")
    if importlib.util.find_spec("liger_kernel") is None:
        raise MistakeError(
            "learner.liger = true: liger-kernel is not installed; install the extra `liger`, or set it to auto"
        )


def check_attention(config: LearnerConfig, *, gpu: bool) -> None:
    """Check that FlashAttention 4 can be used on this machine if `learner.attention` is fa4.

    Args:
        config: options of the learner.
        gpu: whether the learner has GPUs.

    Raises:
        MistakeError: the learner has no GPU, or `flash-attn-4` is not installed.
    """
    if config.attention != "fa4":
        return
    if not gpu:
        raise MistakeError("learner.attention = fa4: it needs a GPU, and the learner has none; set it to auto")
    if not list(importlib.metadata.distributions(name="flash-attn-4")):
        raise MistakeError(
            "learner.attention = fa4: flash-attn-4 is not installed; install the extra `fa4`, or set it to auto"
        )


def learning_rate(step: int, config: OptimizerConfig, steps: int) -> float:
    """Return the learning rate of the optimizer steps on batch `step` (counted from 0) of `steps`."""
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
