"""Runs a model in a different type than its weights, casting one layer at a time to save memory."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer


@contextlib.contextmanager
def compute_in_dtype(model: PreTrainedModel, dtype: torch.dtype, rounded: torch.dtype | None = None) -> Iterator[None]:
    """Run forward passes in `dtype` within the block, without gradients.

    A layer's weights are cast while the layer runs. Embeddings, final norm and head are cast for the whole block.
    Tensors whose type is not the model's, such as a router's float32 bias, are not cast.

    Args:
        model: a causal language model, which has its own weights again after the block.
        dtype: type of weights and activations in the block.
        rounded: type that weights are rounded to before they are cast to `dtype`. Default: the model's type.
    """
    own = model.dtype
    rounded = rounded or own
    if own == dtype == rounded:
        yield
        return
    layers = list(_find_layers(model))
    in_layers = {id(tensor) for layer in layers for tensor in _list_tensors(layer)}
    stored: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def cast(tensors: Iterable[Tensor]) -> list[tuple[Tensor, Tensor]]:
        pairs = [(tensor, tensor.data) for tensor in tensors if tensor.dtype == own]
        for tensor, data in pairs:
            tensor.data = data.to(rounded).to(dtype)
        return pairs

    def restore(pairs: Iterable[tuple[Tensor, Tensor]]) -> None:
        for tensor, data in pairs:
            tensor.data = data

    def before(layer: nn.Module, _: object) -> None:
        stored[layer] = cast(_list_tensors(layer))

    def after(layer: nn.Module, *_: object) -> None:
        restore(stored.pop(layer))

    with contextlib.ExitStack() as stack:
        stack.callback(restore, cast(tensor for tensor in _list_tensors(model) if id(tensor) not in in_layers))
        for layer in layers:
            stack.callback(layer.register_forward_pre_hook(before).remove)
            stack.callback(layer.register_forward_hook(after, always_call=True).remove)
        yield


@contextlib.contextmanager
def float32_head(model: PreTrainedModel) -> Iterator[None]:
    """Run the model's head in float32 within the block; what follows the head, such as a soft cap, gets its float32."""

    def compute_in_float32(head: nn.Linear, inputs: tuple[Tensor], _: Tensor) -> Tensor:
        weight, bias = (None if tensor is None else tensor.float() for tensor in (head.weight, head.bias))
        return linear(inputs[0].float(), weight, bias)

    hook = model.get_output_embeddings().register_forward_hook(compute_in_float32)
    try:
        yield
    finally:
        hook.remove()


def _find_layers(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the decoder layers, which are transformers' units of gradient checkpointing."""
    for child in module.children():
        if isinstance(child, GradientCheckpointingLayer):
            yield child
        else:
            yield from _find_layers(child)


def _list_tensors(module: nn.Module) -> Iterator[Tensor]:
    yield from module.parameters()
    yield from module.buffers()
