"""Computes log-probabilities, entropies and gradients from a head's product, for one chunk of tokens.

    on a CPU    one operation after the other, in blocks of memory that all chunks use
    on a GPU    compiled: `torch.compile` fuses the operations, so that softmax and entropy are computed from the
                product without another tensor `[rows, V]`, or with one if logits are scaled or capped

Compiled functions were compared with plain ones on a CPU; they were not run on a GPU yet.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache, partial
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from tasks.machine.gpus import GpuError, check_compiler

logger = logging.getLogger(__name__)


class Shape(NamedTuple):
    """Maps the output of the LM head to the logits of sampling: logit scale, soft cap and temperature."""

    scale: float
    cap: float | None
    temperature: float

    @property
    def factor(self) -> float:
        """Slope of the function, at 0 if there is a cap."""
        return self.scale / self.temperature


class Blocks:
    """Stores the `[chunk, V]` tensors of one pass.

    On a CPU they are reused by every pass: memory of this size would be mapped again each time, page by page, and
    caused a third of all page faults of a training step on the quickstart. An accelerator's allocator reuses memory
    automatically.
    """

    _reused: ClassVar[dict[tuple[str, torch.dtype, int, int], Tensor]] = {}

    def __init__(self, device: torch.device, vocabulary: int, chunk: int) -> None:
        self._device = device
        self._shape = (chunk, vocabulary)

    def get(self, name: str, dtype: torch.dtype, rows: int) -> Tensor:
        """Return an uninitialised `[rows, V]`, valid until the next call with this `name`."""
        if self._device.type != "cpu":
            return torch.empty(rows, self._shape[1], dtype=dtype, device=self._device)
        key = (name, dtype, *self._shape)
        if key not in self._reused:
            self._reused[key] = torch.empty(self._shape, dtype=dtype)
        return self._reused[key][:rows]


def prepare_for_device(function: Callable[..., Any], device: torch.device, blocks: Blocks) -> Callable[..., Any]:
    """Return `values`, `compute_logits` or `compute_slope` on a device: compiled on a GPU, else in `blocks`."""
    if device.type == "cuda" and can_compile():
        return compiled(function)
    return partial(function, blocks=blocks)


@cache
def compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function compiled: again for the second number of rows, and then for all numbers.

    With `TORCHDYNAMO_DISABLE=1` torch runs it as it is.
    """
    return torch.compile(function, fullgraph=True)


@cache
def can_compile() -> bool:
    """Return whether functions can be compiled for GPUs. If not, one line of the log says so."""
    try:
        check_compiler()
    except GpuError as error:
        logger.warning("the head's softmax is not compiled, and takes longer: %s", error)
        return False
    return True


def values(
    product: Tensor, bias: Tensor | None, targets: Tensor, shape: Shape, *, blocks: Blocks | None = None
) -> tuple[Tensor, Tensor]:
    """Return log-probabilities of the targets, and entropies, nats, `[rows]`.

    Args:
        product: `[rows, V]`, hidden states times the head's weight. It may be overwritten if there are `blocks`.
        bias: `[V]`, or None.
        targets: int64 `[rows]`.
        shape: function from the product, with its bias, to logits.
        blocks: memory for tensors `[rows, V]`. None if the function is compiled, which needs none.
    """
    sampled = compute_logits(product, bias, shape, blocks=blocks)
    logprobs = torch.log_softmax(sampled, dim=-1, out=_take_block(blocks, "softmax", sampled))
    chosen = logprobs.gather(1, targets[:, None])[:, 0]
    # in place: p log p without another [rows, V]
    return chosen, -torch.exp(logprobs, out=sampled if blocks else None).mul_(logprobs).sum(dim=-1)


def compute_logits(product: Tensor, bias: Tensor | None, shape: Shape, *, blocks: Blocks | None = None) -> Tensor:
    """Return the logits used for sampling, `[rows, V]`, in float32 or a wider type; see `values`."""
    wide = torch.promote_types(product.dtype, torch.float32)
    if blocks and product.dtype != wide:
        result = blocks.get("logits", wide, len(product)).copy_(product)
    else:
        result = product.to(wide)
    own = result if blocks else None
    if bias is not None:
        result = torch.add(result, bias, out=own)
    if shape.cap:
        result = torch.mul(result, shape.scale / shape.cap, out=own)
        return result.tanh_().mul_(shape.cap / shape.temperature)
    return result if shape.factor == 1 else torch.mul(result, shape.factor, out=own)


def compute_slope(
    product: Tensor,
    bias: Tensor | None,
    targets: Tensor,
    of_logprobs: Tensor,
    of_entropy: Tensor | None,
    shape: Shape,
    *,
    blocks: Blocks | None = None,
) -> Tensor:
    """Return the negative gradient with respect to the logits before the cap, `[rows, V]`.

    The factors `of_logprobs` and `of_entropy` are `[rows]`; the former is only applied if the latter is given. Other
    arguments are as in `values`. The result has the type of the product, or if there is a bias the type of the logits,
    since its gradient is a sum over all rows.
    """
    sampled = compute_logits(product, bias, shape, blocks=blocks)
    flatness = None
    if shape.cap:  # the slope of the cap, 1 - tanh(x) ** 2
        flatness = torch.square(sampled, out=_take_block(blocks, "flatness", sampled))
        flatness.mul_(-((shape.temperature / shape.cap) ** 2)).add_(1)
    if of_entropy is None:
        result = _softmax_minus_onehot(sampled, targets, blocks)
    else:
        result = _compute_slope_of_both(sampled, targets, of_logprobs, of_entropy, blocks)
    if flatness is not None:
        result.mul_(flatness)
    if bias is not None or result.dtype == product.dtype:
        return result
    return product.copy_(result) if blocks else result.to(product.dtype)


def _softmax_minus_onehot(sampled: Tensor, targets: Tensor, blocks: Blocks | None) -> Tensor:
    """Return `-d logprob / d logits`, `[rows, V]`: the softmax of the logits `sampled`, minus 1 at each target. If
    `blocks` are given, the result is in their memory.

    The subtraction comes before the rounding to bfloat16, which would lose 1 - p of a confident token. The factors of
    rows are applied later, to the 16-bit matrices.
    """
    return _minus_onehot_(torch.softmax(sampled, dim=-1, out=_take_block(blocks, "softmax", sampled)), targets, blocks)


def _minus_onehot_(softmax: Tensor, targets: Tensor, blocks: Blocks | None) -> Tensor:
    if blocks:
        return softmax.scatter_add_(1, targets[:, None], softmax.new_full((len(softmax), 1), -1.0))
    # a scattered write would not be fused
    return softmax.sub_((torch.arange(softmax.shape[1], device=softmax.device) == targets[:, None]).to(softmax.dtype))


def _compute_slope_of_both(
    sampled: Tensor, targets: Tensor, of_logprobs: Tensor, of_entropy: Tensor, blocks: Blocks | None
) -> Tensor:
    """Return `-d (of_logprobs * logprob + of_entropy * H) / d logits`, `[rows, V]`; the factors are `[rows]`.

    It overwrites the logits if there are `blocks`. `d H / d logits = -p (log p + H)`.
    """
    softmax = torch.softmax(sampled, dim=-1, out=_take_block(blocks, "softmax", sampled))
    logprobs = torch.sub(sampled, sampled.logsumexp(dim=-1, keepdim=True), out=sampled if blocks else None)
    negative_entropy = (softmax * logprobs).sum(dim=-1, keepdim=True)
    bonus = logprobs.sub_(negative_entropy).mul_(softmax).mul_(of_entropy[:, None])
    return _minus_onehot_(softmax, targets, blocks).mul_(of_logprobs[:, None]).add_(bonus)


def _take_block(blocks: Blocks | None, name: str, like: Tensor) -> Tensor | None:
    """Return memory for a tensor as large as `like`, or None: a compiled function's is chosen by the compiler."""
    return blocks.get(name, like.dtype, len(like)) if blocks else None
