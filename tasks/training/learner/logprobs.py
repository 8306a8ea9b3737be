"""Log-probabilities and entropy of predicted tokens, without ever holding the logits of a whole micro-batch.

Logits are by far the largest tensor of a training step: 16k tokens times a vocabulary of 49k are 3 GiB in float32, and
the backward pass of the softmax needs them again. Here they exist for one chunk of tokens at a time, and the backward
pass computes them a second time: four matrix products in place of three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor

from tasks.training.learner import liger

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        scale: float
        chunk: int
        entropy_gradient: bool
        saved_tensors: tuple[Tensor, Tensor, Tensor]
        needs_input_grad: tuple[bool, ...]


DEFAULT_CHUNK = 1024
"""Tokens whose logits exist at a time."""


def token_logprobs(
    hidden: Tensor,
    lm_head_weight: Tensor,
    targets: Tensor,
    *,
    temperature: float = 1.0,
    chunk: int = DEFAULT_CHUNK,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute `log_softmax(hidden @ lm_head_weight.T / temperature)` at the targets, and that distribution's entropy.

    Matrix products run in the dtype of `hidden`; softmax, sums and the returned values are float32, or float64 for
    float64 inputs. Pass the hidden states of trained positions only: prompt tokens then cost nothing.

    Args:
        hidden: `[T, H]`, last hidden states, one for each predicted token; T may be 0.
        lm_head_weight: `[V, H]`, same dtype as `hidden`.
        targets: int64 `[T]`, the predicted tokens.
        temperature: that of sampling, so that these are the probabilities that the engine drew from.
        chunk: tokens whose logits `[chunk, V]` exist at a time. Changes memory and speed, not values.
        with_entropy: also compute the entropy.
        entropy_gradient: make it differentiable too, which costs the backward pass another pass over each `[chunk, V]`.

    Returns:
        Log-probabilities `[T]`, nats, differentiable in `hidden` and `lm_head_weight`; and entropy `[T]`, nats,
        detached unless `entropy_gradient`, or None.

    Raises:
        ValueError: shapes do not fit together, `temperature` is not above 0, or `chunk` is below 1.
    """
    if hidden.ndim != 2 or targets.shape != hidden.shape[:1] or lm_head_weight.shape[1:] != hidden.shape[1:]:
        raise ValueError(
            "hidden, lm_head_weight and targets must be [T, H], [V, H] and [T], "
            f"got {list(hidden.shape)}, {list(lm_head_weight.shape)} and {list(targets.shape)}"
        )
    if temperature <= 0 or chunk < 1:
        raise ValueError(f"temperature must be above 0 and chunk at least 1, got {temperature} and {chunk}")
    logprobs, entropy = _TokenLogprobs.apply(
        hidden, lm_head_weight, targets, 1 / temperature, chunk, with_entropy, entropy_gradient
    )
    return logprobs, entropy if with_entropy else None


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        targets: Tensor,
        scale: float,
        chunk: int,
        with_entropy: bool,
        entropy_gradient: bool,
    ) -> tuple[Tensor, Tensor]:
        blocks = _Blocks(hidden, len(weight), chunk)
        chosen, entropy = (hidden.new_zeros(len(hidden), dtype=blocks.wide) for _ in range(2))
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = _logits(hidden[rows], weight, scale, blocks)  # [chunk, V]
            logprobs = torch.log_softmax(logits, dim=-1, out=blocks.get("softmax", blocks.wide, len(logits)))
            chosen[rows] = logprobs.gather(1, targets[rows, None])[:, 0]
            if with_entropy:
                # in place: p log p without another [chunk, V]
                entropy[rows] = -torch.exp(logprobs, out=logits).mul_(logprobs).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, targets)
        ctx.scale, ctx.chunk, ctx.entropy_gradient = scale, chunk, entropy_gradient
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: _Context, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets = ctx.saved_tensors
        needs_hidden, needs_weight = ctx.needs_input_grad[:2]
        blocks = _Blocks(hidden, len(weight), ctx.chunk)
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_weight: Tensor | None = None
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            upstream = -ctx.scale * grad_logprobs[rows, None]  # [chunk, 1]
            if ctx.entropy_gradient:  # the sum of two slopes has no common factor to take out
                logits = _logits(hidden[rows], weight, ctx.scale, blocks)
                slope = _slope_of_both(logits, targets[rows], grad_logprobs[rows], grad_entropy[rows], blocks)
                upstream = torch.full_like(upstream, -ctx.scale)
            elif liger.serves(hidden):
                logits = _narrow_logits(hidden[rows], weight, ctx.scale, blocks)
                slope = liger.softmax_minus_onehot_(logits, targets[rows])
            else:
                slope = _softmax_minus_onehot(_logits(hidden[rows], weight, ctx.scale, blocks), targets[rows], blocks)
            if slope.dtype != hidden.dtype:
                slope = blocks.get("product", hidden.dtype, len(slope)).copy_(slope)
            if grad_hidden is not None:
                grad_hidden[rows] = (slope @ weight) * upstream
            if needs_weight:
                product = slope.T @ (hidden[rows] * upstream).to(hidden.dtype)  # [V, H]
                # summed in float32: bfloat16 would round away what the later chunks add
                grad_weight = product if grad_weight is None else grad_weight.to(upstream.dtype).add_(product)
        if needs_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        return grad_hidden, grad_weight, None, None, None, None, None


def _softmax_minus_onehot(logits: Tensor, targets: Tensor, blocks: _Blocks) -> Tensor:
    """`-d logprob / d logits`, `[rows, V]`.

    The subtraction comes before the rounding to bfloat16, in which 1 - p of a confident token would vanish. The factors
    on rows are applied later, to the narrow matrices.
    """
    slope = torch.softmax(logits, dim=-1, out=blocks.get("softmax", blocks.wide, len(logits)))
    return slope.scatter_add_(1, targets[:, None], slope.new_full((len(slope), 1), -1.0))


def _slope_of_both(logits: Tensor, targets: Tensor, of_logprobs: Tensor, of_entropy: Tensor, blocks: _Blocks) -> Tensor:
    """`-d (of_logprobs * logprob + of_entropy * H) / d logits`, `[rows, V]`; the factors are `[rows]`.

    It overwrites the logits. `d H / d logits = -p (log p + H)`.
    """
    softmax = torch.softmax(logits, dim=-1, out=blocks.get("softmax", blocks.wide, len(logits)))
    logprobs = logits.sub_(logits.logsumexp(dim=-1, keepdim=True))
    negative_entropy = (softmax * logprobs).sum(dim=-1, keepdim=True)
    bonus = logprobs.sub_(negative_entropy).mul_(softmax).mul_(of_entropy[:, None])
    softmax.scatter_add_(1, targets[:, None], softmax.new_full((len(softmax), 1), -1.0))
    return softmax.mul_(of_logprobs[:, None]).add_(bonus)


def _logits(hidden: Tensor, weight: Tensor, scale: float, blocks: _Blocks) -> Tensor:
    """Scaled logits `[rows, V]` in the wide type."""
    logits = _product(hidden, weight, blocks)
    if logits.dtype != blocks.wide:
        logits = blocks.get("logits", blocks.wide, len(hidden)).copy_(logits)
    return logits if scale == 1 else logits.mul_(scale)


def _narrow_logits(hidden: Tensor, weight: Tensor, scale: float, blocks: _Blocks) -> Tensor:
    """Logits `[rows, V]` in the type of `hidden`; in the wide type where they are scaled, which would round them."""
    return _product(hidden, weight, blocks) if scale == 1 else _logits(hidden, weight, scale, blocks)


def _product(hidden: Tensor, weight: Tensor, blocks: _Blocks) -> Tensor:
    return torch.mm(hidden, weight.T, out=blocks.get("product", hidden.dtype, len(hidden)))


class _Blocks:
    """The `[chunk, V]` tensors of one pass.

    On a CPU they are reused by every pass: memory of this size would be mapped anew each time, page by page, and was a
    third of all page faults of a training step on the quickstart. An accelerator's allocator reuses memory by itself.
    """

    _reused: ClassVar[dict[tuple[str, torch.dtype, int, int], Tensor]] = {}

    def __init__(self, hidden: Tensor, vocabulary: int, chunk: int) -> None:
        self.wide = torch.promote_types(hidden.dtype, torch.float32)
        self._device = hidden.device
        self._shape = (chunk, vocabulary)

    def get(self, name: str, dtype: torch.dtype, rows: int) -> Tensor:
        """Return an uninitialised `[rows, V]`, valid until the next call with this `name`."""
        if self._device.type != "cpu":
            return torch.empty(rows, self._shape[1], dtype=dtype, device=self._device)
        key = (name, dtype, *self._shape)
        if key not in self._reused:
            self._reused[key] = torch.empty(self._shape, dtype=dtype)
        return self._reused[key][:rows]
