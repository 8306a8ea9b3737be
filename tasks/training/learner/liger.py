"""Liger's fused cross-entropy loss, on GPUs where `liger-kernel` is installed (arXiv:2410.10989).

Its kernel leaves the loss's gradient in place of the logits, which is the backward pass of a log-probability without
a softmax beside them; at temperature 1 they stay in the narrow type, too. The forward pass is torch's: it also wants
the entropy. Liger's GRPO loss itself is not used: it takes padded rows, and returns no log-probabilities, of which the
objective's corrections, clipping and metrics are made.
"""

from __future__ import annotations

import importlib.util
from functools import cache

import torch
from torch import Tensor

_NO_TARGET = -100


def serves(tensor: Tensor) -> bool:
    """Whether the kernel runs where this tensor is."""
    return tensor.is_cuda and installed()


@cache
def installed() -> bool:
    """Whether there is a `liger-kernel` here."""
    return importlib.util.find_spec("liger_kernel") is not None


def softmax_minus_onehot_(logits: Tensor, targets: Tensor) -> Tensor:
    """The gradient of `-log_softmax(logits)` at the targets, in place of the logits.

    Computed in float32 and rounded once, whatever the type of the logits.

    Args:
        logits: `[T, V]`, overwritten.
        targets: int64 `[T]`, each in `[0, V)`.

    Returns:
        `[T, V]`, the same memory.
    """
    from liger_kernel.ops.cross_entropy import cross_entropy_forward

    with torch.no_grad():
        *_, slope = cross_entropy_forward(
            logits.detach().requires_grad_(),  # what asks the kernel for a gradient
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
