"""Calls Liger's fused cross-entropy kernel on GPUs if `liger-kernel` is installed (arXiv:2410.10989).

The kernel overwrites the logits with the gradient of the loss, so that the backward pass of a log-probability needs no
separate softmax tensor. At temperature 1 the logits also stay in the 16-bit type. The forward pass is torch's, because
it also computes the entropy. Liger's GRPO loss is not used: it requires padded rows, and does not return
log-probabilities, which the objective's corrections, clipping and metrics need.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

_NO_TARGET = -100


def can_run(tensor: Tensor) -> bool:
    """Return whether the kernel can run on this tensor: it is on a GPU, and `liger-kernel` is installed."""
    return tensor.is_cuda and is_installed()


@cache
def is_installed() -> bool:
    """Return whether `liger-kernel` is installed."""
    return importlib.util.find_spec("liger_kernel") is not None


def softmax_minus_onehot_(logits: Tensor, targets: Tensor) -> Tensor:
    """Replace the logits by the gradient of `-log_softmax(logits)[targets]`, which is `softmax(logits) - onehot`.

    It is computed in float32 and rounded once, for any type of the logits.

    Args:
        logits: `[T, V]`, overwritten.
        targets: int64 `[T]`, each in `[0, V)`.

    Returns:
        `[T, V]`, the same memory.
    """
    from liger_kernel.ops.cross_entropy import cross_entropy_forward

    with torch.no_grad():
        *_, slope = cross_entropy_forward(
            logits.detach().requires_grad_(),  # makes the kernel compute the gradient
            targets,
            weight=None,
            ignore_index=_NO_TARGET,
            lse_square_scale=0.0,
            label_smoothing=0.0,
            reduction="none",
            softcap=None,
            return_z_loss=False,
        )
    return slope.detach()
