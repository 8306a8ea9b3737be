"""Wraps the trained model in a module that computes log-probabilities of the trained tokens of packed rows."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypedDict

import torch
from torch import Tensor, nn
from torch.autograd.graph import save_on_cpu
from transformers import AttentionInterface, AutoConfig, AutoModelForCausalLM, PreTrainedConfig, PreTrainedModel
from transformers.core_model_loading import revert_weight_conversion
from transformers.modeling_layers import GradientCheckpointingLayer

from tasks.recipe.learner import CHUNK_ON_CPU, LoraConfig
from tasks.storage.model_folder import ModelError, convert_load_errors
from tasks.training.learner import attention, varlen
from tasks.training.learner.adapter import adapter_parameters, add_adapter, base_parameters, switched_off
from tasks.training.learner.architecture import (
    LogitsShape,
    carries_state,
    fix_rope,
    freeze_constants,
    without_randomness,
)
from tasks.training.learner.logprobs import can_be_fused, token_logprobs
from tasks.training.learner.packing import RowOptions
from tasks.training.learner.routing import RouteReplay
from tasks.training.learner.row_cost import RowCost
from tasks.training.learner.sharding import gather_experts_together, load_sharded, restore_buffers

DENSE = "sdpa"
"""Name of torch's attention. transformers passes it a mask `[T, T]` of a packed row."""
EAGER = "eager"
"""Name of transformers' plain attention, which takes the same mask and supports every variant."""
LAYOUTS: Mapping[str, Callable[[Tensor], object]] = {
    attention.NAME: attention.Layout.build,
    varlen.NAME: varlen.Bounds.build,
}
"""Functions that compute an attention's description of a row from its `position_ids`, by the attention's name."""


class Row(TypedDict):
    """The arguments of `Policy.forward` for one packed row: T tokens that predict N."""

    input_ids: Tensor
    """int64 `[1, T]`."""
    position_ids: Tensor
    """int64 `[1, T]`, as in `packing`; they prevent sequences from attending to each other."""
    sources: Tensor
    """int64 `[1, N]`, the index in the row of the hidden state that predicts each token."""
    targets: Tensor
    """int64 `[1, N]`, the predicted tokens."""
    mask: Tensor
    """bool `[1, N]`, trained tokens."""
    temperature: float
    """Temperature used to sample the rollouts."""


class Policy(nn.Module):
    """A causal language model whose forward pass never stores the logits of a whole micro-batch.

    Its parameters are the Hugging Face model's under `model`, so that weights are exported by their checkpoint names.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        chunk: int,
        fused: bool = True,
        offload_activations: bool = False,
        replays_routes: bool = False,
        float32_head: bool = False,
    ) -> None:
        """Wrap a model.

        Args:
            model: a causal language model.
            chunk, fused: see `token_logprobs`; `chunk` is the number of tokens whose logits are in memory at a time.
            offload_activations: whether stored activations are kept in main memory until the backward pass.
            replays_routes: whether `forward` takes the experts of each token.
            float32_head: whether the head computes in float32 (`head_dtype`); its weight keeps its type.

        Raises:
            ModelError: with `replays_routes`, the routers of the model are not supported.
        """
        super().__init__()
        self._fused = fused
        self._float32_head = float32_head
        self._offload_activations = offload_activations
        self.model = model
        self._chunk = chunk
        self._logits = LogitsShape.from_config(model.config)
        self._replay = RouteReplay(model) if replays_routes else None

    @classmethod
    def load(
        cls,
        folder: str | Path,
        *,
        dtype: torch.dtype,
        gradient_checkpointing: bool = False,
        checkpoint_every_n_layers: int = 1,
        offload_activations: bool = False,
        chunk: int = CHUNK_ON_CPU,
        lora: LoraConfig | None = None,
        longest: int | None = None,
        fused: bool = True,
        float32_head: bool = False,
        compiled: bool = False,
        replays_routes: bool = False,
        sharding: Mapping[str, Any] | None = None,
    ) -> Policy:
        """Load a Hugging Face model folder, with a new adapter if `lora` is given.

        It uses the attention from `register_attention`, or transformers' plain attention on a GPU if scores are capped.
        All randomness, such as dropout, is off. With `gradient_checkpointing`, the backward pass recomputes the first
        of every `checkpoint_every_n_layers` layers. `longest` is passed to `fix_rope`, and `fused` and `float32_head`
        to `token_logprobs`. With `compiled`, layers are compiled when they first run. With `replays_routes`, `forward`
        takes the experts of each token. With `sharding`, which is DeepSpeed's configuration with ZeRO 3, every rank
        loads its shard of each parameter, and the call is collective.

        Raises:
            ModelError: the folder cannot be loaded, or RoPE depends on the length of a sequence in a way that packed
                rows cannot follow, or its routes cannot be replayed.
        """
        with convert_load_errors(folder), load_sharded(sharding):
            config = without_randomness(AutoConfig.from_pretrained(folder))
            name = choose_attention(config, dtype)
            try:
                model = AutoModelForCausalLM.from_pretrained(
                    folder, config=config, dtype=dtype, attn_implementation=name
                )
            except KeyError as error:
                if error.args != (name,):
                    raise
                raise ModelError(
                    f"model {folder}: the learner does not support models of the type `{config.model_type}`: their "
                    "attention cannot be replaced by one for packed rows; use another model"
                ) from error
        model.config.use_cache = False
        freeze_constants(model)
        if sharding:
            restore_buffers(model, dtype)
            gather_experts_together(model)
        fix_rope(model, longest)
        if lora:
            add_adapter(model, lora)
        if gradient_checkpointing:
            # ZeRO-3 frees parameters between forward and backward, which breaks non-reentrant checkpointing.
            some: dict[str, Any] = (
                {"every_n_layers": checkpoint_every_n_layers} if checkpoint_every_n_layers > 1 else {}
            )
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True}, **some)
            model.enable_input_require_grads()
        if compiled:
            for layer in model.modules():
                if isinstance(layer, GradientCheckpointingLayer):
                    layer.compile(dynamic=True)  # once for all identical layers, and for rows of any length
        return cls(
            model,
            chunk,
            fused,
            offload_activations,
            replays_routes=replays_routes,
            float32_head=float32_head,
        )

    @property
    def can_be_fused(self) -> bool:
        """True if Liger's kernel can compute the gradient of its head, provided that the entropy is not in the loss."""
        bias = getattr(self.model.get_output_embeddings(), "bias", None)
        return can_be_fused(self._logits.cap, bias, entropy_gradient=False)

    @property
    def shares_prompts(self) -> bool:
        """True if its attention supports rows with shared prompts (`packing`)."""
        return self.model.config._attn_implementation == attention.NAME

    @property
    def rows(self) -> RowOptions:
        """The kind of rows that the model supports."""
        return RowOptions(
            share_prompts=self.shares_prompts,
            alone=carries_state(self.model),
            cost=RowCost.from_config(self.model.config.get_text_config().to_dict()),
        )

    @property
    def attends_densely(self) -> bool:
        """True if its attention uses a mask `[T, T]` of a row."""
        return self.model.config._attn_implementation in (DENSE, EAGER)

    def forward(
        self,
        input_ids: Tensor,
        position_ids: Tensor,
        sources: Tensor,
        targets: Tensor,
        mask: Tensor,
        temperature: float,
        entropy_gradient: bool = False,
        routes: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return log-probabilities and entropy of the trained tokens of one packed row.

        Args:
            input_ids, position_ids, sources, targets, mask, temperature: the fields of a `Row`.
            entropy_gradient: whether the entropy carries a gradient, as the log-probabilities do.
            routes: int16 `[T, layers, k]`, the experts of each token, or -1 if the model chooses them. Optional. If
                None, it chooses all. The backward pass must precede the next forward pass.

        Returns:
            Two float32 tensors `[1, N]`, zero outside the mask.
        """
        assert self._replay or routes is None, "the policy replays no routes"
        if self._replay:
            self._replay.begin(routes)
        # in the backward pass the block has ended, so what a layer stores while it is recomputed stays on the device
        with save_on_cpu(pin_memory=True) if self._offload_activations else contextlib.nullcontext():
            hidden = self.model.base_model(  # [1, T, H]
                input_ids=input_ids,
                position_ids=position_ids,
                use_cache=False,
                **make_layout_arguments(self.model, position_ids),
            )[0]
        head = self.model.get_output_embeddings()
        # Mamba 2 has float32 hidden states, and casts them to the type of the head before it
        chosen = hidden[0].index_select(0, sources[mask]).to(head.weight.dtype)  # [trained, H]
        logprobs, entropy = token_logprobs(
            chosen,
            head.weight,  # [V, H]
            targets[mask],
            bias=getattr(head, "bias", None),
            scale=self._logits.scale,
            cap=self._logits.cap,
            temperature=temperature,
            chunk=self._chunk,
            entropy_gradient=entropy_gradient,
            fused=self._fused,
            float32=self._float32_head,
        )
        return _scatter(logprobs, mask), _scatter(entropy, mask)

    def checkpoint_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the model's parameters, without an adapter's, by their names in memory (see `in_checkpoint`).

        A tied head is the embedding, and is yielded once.
        """
        return base_parameters(self.model)

    def checkpoint_buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the tensors of a checkpoint without gradients, such as a router's score correction."""
        for prefix, module in self.model.named_modules():
            for name, buffer in module.named_buffers(prefix, recurse=False):
                if name.rpartition(".")[2] not in module._non_persistent_buffers_set:
                    yield name, buffer

    def in_checkpoint(self, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return tensors of the model, named and split as in its checkpoint, as views of `tensors` if possible.

        transformers joins some tensors while it loads, such as the experts of a layer; engines read checkpoints.

        Args:
            tensors: all tensors of one or more layers, or of the model, by their names in memory.
        """
        named: dict[str, Tensor] = revert_weight_conversion(self.model, tensors)
        return named

    def adapter_parameters(self) -> Iterator[tuple[str, nn.Parameter]]:
        """Yield the adapter's parameters by their names in peft's file; yield nothing without an adapter."""
        return adapter_parameters(self.model)

    def without_adapter(self) -> contextlib.AbstractContextManager[None]:
        """Disable the adapter within a block, so that the policy is the initial checkpoint."""
        return switched_off(self.model)


def make_layout_arguments(model: PreTrainedModel, position_ids: Tensor) -> dict[str, object]:
    """Return the arguments that describe a row to the attention of the model, none for a dense mask."""
    layout_of = LAYOUTS.get(model.config._attn_implementation)
    return {"layout": layout_of(position_ids)} if layout_of else {}


def _scatter(values: Tensor, mask: Tensor) -> Tensor:
    full = torch.zeros(mask.shape, dtype=values.dtype, device=values.device)
    return full.masked_scatter(mask, values)


def choose_attention(config: PreTrainedConfig, dtype: torch.dtype) -> str:
    """Return the name of the attention for packed rows of this model on this machine.

    It is the attention from `register_attention`, or transformers' plain attention if the model caps scores and that
    attention cannot.
    """
    name = register_attention(dtype)
    capped = getattr(config.get_text_config(), "attn_logit_softcapping", None)
    return EAGER if capped and name != attention.NAME else name


def register_attention(dtype: torch.dtype) -> str:
    """Return the name of the attention for packed rows on this machine, and register it with transformers.

    It is `packed_attention` without a GPU, `varlen_attention` with one, and torch's attention with a dense mask if that
    kernel does not support the GPU or the type.
    """
    for known, function in ((attention.NAME, attention.packed_attention), (varlen.NAME, varlen.varlen_attention)):
        # not compiled within layers: loops over the sequences of a row would be compiled for each row
        AttentionInterface.register(known, torch.compiler.disable(function))
    if not torch.cuda.is_available():
        return attention.NAME
    return varlen.NAME if varlen.can_run(dtype) else DENSE
