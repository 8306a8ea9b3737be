"""The tensors of the model that a model check trains: their device, their size, copies of them and merged weights."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from tasks.recipe.learner import LoraConfig
from tasks.storage.model_folder import count_weight_bytes
from tasks.training.learner.adapter import merge_adapter
from tasks.training.learner.policy import Policy

MEMORY = 3
"""Free GPU memory that the check requires, as a multiple of the size of the weights: weights, gradients, the rest."""


def compute_size(parameter: Tensor) -> float:
    """Return the root mean square of a tensor, or 1 if that is 0."""
    return float(parameter.detach().float().square().mean().sqrt()) or 1.0


def choose_device(folder: Path) -> torch.device:
    """Return the GPU if it has memory for the weights in `folder`, their gradients and a row; else the CPU."""
    if not torch.cuda.is_available():
        return torch.device("cpu")
    free, _ = torch.cuda.mem_get_info()
    return torch.device("cuda" if MEMORY * count_weight_bytes(folder) < free else "cpu")


def copy_to_memory(tensors: Iterable[tuple[str, Tensor]]) -> dict[str, Tensor]:
    """Return copies of tensors in main memory."""
    return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors}


def ensure_own_memory(tensor: Tensor) -> Tensor:
    """Return the tensor in separate memory: safetensors does not write views of other tensors."""
    own = tensor.is_contiguous() and tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor if own else tensor.clone(memory_format=torch.contiguous_format)


@contextlib.contextmanager
def use_merged_weights(policy: Policy, lora: LoraConfig) -> Iterator[None]:
    """Use merged weights instead of the adapter within the block."""
    base = dict(policy.checkpoint_parameters())
    values = merge_adapter(copy_to_memory(base.items()), copy_to_memory(policy.adapter_parameters()), lora)
    before = {name: tensor.data for name, tensor in base.items()}
    for name, tensor in base.items():
        tensor.data = values[name].to(tensor.device)
    try:
        with policy.without_adapter():
            yield
    finally:
        for name, tensor in base.items():
            tensor.data = before[name]
