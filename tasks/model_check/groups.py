"""Groups a model's tensors by kind and by blocks of layers, because an engine may keep old values of such a group."""

from __future__ import annotations

import re
from collections.abc import Mapping

from torch import Tensor

LAYER = re.compile(r"\.(\d+)\.(.+)$")
"""Matches the number of a layer in a tensor's name, and the rest of the name."""
BLOCK = 4
"""Layers of a block. Larger blocks take fewer forward passes, but a single old layer is harder to detect."""
MOST_BLOCKS = 8
"""Most blocks of a model."""


def find_kind(name: str, tensor: Tensor) -> str:
    """Return `norms and biases`, `experts` or a module such as `mlp` for tensors of layers, else the tensor's name."""
    match = LAYER.search(name)
    if match is None:
        return name.removesuffix(".weight")
    if tensor.ndim == 1:
        return "norms and biases"
    return "experts" if "experts" in match[2] else match[2].partition(".")[0]


def split_into_groups(tensors: Mapping[str, Tensor]) -> dict[str, list[str]]:
    """Return the names of `tensors` by kind and, if there are several layers, also by blocks of layers."""
    groups: dict[str, list[str]] = {}
    for name, tensor in tensors.items():
        groups.setdefault(find_kind(name, tensor), []).append(name)
    layers = {name: int(match[1]) for name in tensors if (match := LAYER.search(name))}
    count = max(layers.values(), default=0) + 1
    size = max(min(BLOCK, -(-count // 2)), -(-count // MOST_BLOCKS))
    for name, layer in layers.items() if count > 1 else ():
        first = layer // size * size
        last = min(first + size, count) - 1
        block = f"layer {first}" if first == last else f"layers {first} to {last}"
        groups.setdefault(block, []).append(name)
    return groups
