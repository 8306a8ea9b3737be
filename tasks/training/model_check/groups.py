"""Groups of a model's tensors that an engine may hold in old form: by kind, and by blocks of layers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

LAYER = re.compile(r"\.(\d+)\.(.+)$")
"""The number of a layer in a tensor's name, and the rest of the name."""
BLOCK = 4
"""Layers of a block: fewer would take more forward passes, more would hide a single layer among them."""
MOST_BLOCKS = 8
"""Most blocks of a model."""


def kind_of(name: str, tensor: Tensor) -> str:
    """Return what a tensor is: `norms and biases`, `experts`, the module of a layer, such as `mlp`, or its own name."""
    match = LAYER.search(name)
    if match is None:
        return name.removesuffix(".weight")
    if tensor.ndim == 1:
        return "norms and biases"
    return "experts" if "experts" in match[2] else match[2].partition(".")[0]


def groups_of(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the names of a model's tensors by kind, and again by blocks of layers where there are several.

    Args:
        tensors: the trained tensors, by name.
    """
    groups: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(kind_of(name, tensor), []).append(name)
    layers = {name: int(match[1]) for name in tensors if (match := LAYER.search(name))}
    count = max(layers.values(), default=0) + 1
    size = max(min(BLOCK, -(-count // 2)), -(-count // MOST_BLOCKS))
    for name, layer in layers.items() if count > 1 else ():
        first = layer // size * size
        last = min(first + size, count) - 1
        block = f"layer {first}" if first == last else f"layers {first} to {last}"
        groups.setdefault(block, []).append(name)
    return groups
