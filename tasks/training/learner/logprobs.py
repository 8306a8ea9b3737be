"""Computes log-probabilities and entropy of predicted tokens without storing the logits of a whole micro-batch.

Logits are by far the largest tensor of a training step: 16k tokens times a vocabulary of 49k are 3 GiB in float32, and
the backward pass of the softmax needs them again. Here they exist for one chunk of tokens at a time, and the backward
pass recomputes them: four matrix products instead of three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, NamedTuple

import torch
from torch import Tensor

from tasks.training.learner import liger

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        shape: _Shape
        chunk: int
        entropy_gradient: bool
        fused: bool
        head: torch.dtype
        saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor | None]
        needs_input_grad: tuple[bool, ...]


DEFAULT_CHUNK = 1024
"""Number of tokens whose logits are in memory at a time."""


def token_logprobs(
    hidden: Tensor,
    lm_head_weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
    temperature: float = 1.0,
    chunk: int = DEFAULT_CHUNK,
    with_entropy: bool = True,
    entropy_gradient: bool = False,
    fused: bool = True,
    float32: bool = False,
) -> tuple[Tensor, Tensor | None]:
    """Compute `log_softmax(logits / temperature)` at the targets, and that distribution's entropy.

    Logits are `x = scale * (hidden @ lm_head_weight.T + bias)` or, with a cap, `cap * tanh(x / cap)`.

    Matrix products run in the dtype of `hidden`, or in float32 with `float32`; softmax, sums and the returned values
    are float32, or float64 for float64 inputs. Pass only the hidden states of trained positions, so that prompt tokens
    cost nothing.

    Args:
        hidden: `[T, H]`, last hidden states, one for each predicted token; T may be 0.
        lm_head_weight: `[V, H]`, same dtype as `hidden`.
        targets: int64 `[T]`, the predicted tokens.
        bias: `[V]`, bias of the head, in the dtype of `hidden`. Optional. If None, the head has no bias.
        scale: factor on all logits (Granite, Cohere).
        cap: bound of all logits (Gemma 2). Optional. If None, they are not bounded.
        temperature: sampling temperature, so that the result refers to the distribution that the engine sampled from.
        chunk: number of tokens whose logits `[chunk, V]` are in memory at a time. It changes memory and speed, not
            values.
        with_entropy: also compute the entropy.
        entropy_gradient: make the entropy differentiable too, which costs another pass over each `[chunk, V]` in the
            backward pass.
        fused: compute the backward pass with Liger's kernel if it can run (`liger`).
        float32: compute the head in float32 for 16-bit inputs: neither logits nor their gradient are rounded to 16 bits
            (ScaleRL, arXiv:2510.13786). Gradients are rounded to the dtype of `hidden` at the end.

    Returns:
        Log-probabilities `[T]`, nats, differentiable in `hidden`, `lm_head_weight` and `bias`; and entropy `[T]`, nats,
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
    shape = _Shape(scale, cap, temperature)
    head = torch.promote_types(hidden.dtype, torch.float32) if float32 else hidden.dtype
    logprobs, entropy = _TokenLogprobs.apply(
        hidden, lm_head_weight, bias, targets, shape, chunk, with_entropy, entropy_gradient, fused, head
    )
    return logprobs, entropy if with_entropy else None


def can_be_fused(cap: float | None, bias: Tensor | None, entropy_gradient: bool) -> bool:
    """Return whether Liger's kernel can compute a head's gradient: without cap, bias and entropy in the loss."""
    return not (entropy_gradient or cap or bias is not None)


class _Shape(NamedTuple):
    """Maps the output of the LM head to the logits of sampling: logit scale, soft cap and temperature."""

    scale: float
    cap: float | None
    temperature: float

    @property
    def factor(self) -> float:
        """Slope of the function, at 0 if there is a cap."""
        return self.scale / self.temperature

    def apply_(self, logits: Tensor) -> Tensor:
        """Apply the function in place."""
        if self.cap:
            return logits.mul_(self.scale / self.cap).tanh_().mul_(self.cap / self.temperature)
        return logits if self.factor == 1 else logits.mul_(self.factor)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        shape: _Shape,
        chunk: int,
        with_entropy: bool,
        entropy_gradient: bool,
        fused: bool,
        head: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        blocks = _Blocks(hidden, len(weight), chunk, head)
        left, right = (hidden, weight) if hidden.is_cuda else (hidden.to(head), weight.to(head))
        chosen, entropy = (hidden.new_zeros(len(hidden), dtype=blocks.wide) for _ in range(2))
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            logits = _logits(left[rows], right, bias, shape, blocks)  # [chunk, V]
            logprobs = torch.log_softmax(logits, dim=-1, out=blocks.get("softmax", blocks.wide, len(logits)))
            chosen[rows] = logprobs.gather(1, targets[rows, None])[:, 0]
            if with_entropy:
                # in place: p log p without another [chunk, V]
                entropy[rows] = -torch.exp(logprobs, out=logits).mul_(logprobs).sum(dim=-1)
        ctx.save_for_backward(hidden, weight, targets, bias)  # type: ignore[arg-type]  # None is taken, too
        ctx.shape, ctx.chunk, ctx.head, ctx.entropy_gradient = shape, chunk, head, entropy_gradient
        ctx.fused = fused and can_be_fused(shape.cap, bias, entropy_gradient)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        return chosen, entropy

    @staticmethod
    def backward(ctx: _Context, grad_logprobs: Tensor, grad_entropy: Tensor) -> tuple[Tensor | None, ...]:
        hidden, weight, targets, bias = ctx.saved_tensors
        shape, (needs_hidden, needs_weight, needs_bias) = ctx.shape, ctx.needs_input_grad[:3]
        blocks = _Blocks(hidden, len(weight), ctx.chunk, ctx.head)
        exact_hidden, exact_weight = hidden.to(ctx.head), weight.to(ctx.head)
        left, right = (hidden, weight) if hidden.is_cuda else (exact_hidden, exact_weight)
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_bias = torch.zeros(len(weight), 1, dtype=blocks.wide, device=hidden.device) if needs_bias else None
        grad_weight: Tensor | None = None
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            upstream = -shape.factor * grad_logprobs[rows, None]  # [chunk, 1]
            if ctx.fused and liger.serves(hidden):
                logits = _narrow_logits(left[rows], right, shape, blocks)
                slope = liger.softmax_minus_onehot_(logits, targets[rows])
            else:
                logits = _logits(left[rows], right, bias, shape, blocks)
                of_entropy = grad_entropy[rows] if ctx.entropy_gradient else None
                slope = _slope(logits, targets[rows], grad_logprobs[rows], of_entropy, shape, blocks)
            if ctx.entropy_gradient:  # the sum of two slopes has no common factor
                upstream = torch.full_like(upstream, -shape.factor)
            if grad_bias is not None:
                grad_bias += slope.to(blocks.wide).T @ upstream
            if slope.dtype != blocks.head:
                slope = blocks.get("product", blocks.head, len(slope)).copy_(slope)
            if grad_hidden is not None:
                grad_hidden[rows] = (slope @ exact_weight) * upstream
            if needs_weight:
                product = slope.T @ (exact_hidden[rows] * upstream).to(blocks.head)  # [V, H]
                # summed in float32: bfloat16 would round away what later chunks add
                grad_weight = product if grad_weight is None else grad_weight.to(upstream.dtype).add_(product)
        if needs_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias[:, 0].to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None, None


def _slope(
    logits: Tensor, targets: Tensor, of_logprobs: Tensor, of_entropy: Tensor | None, shape: _Shape, blocks: _Blocks
) -> Tensor:
    """Return the negative gradient with respect to the logits before the cap, `[rows, V]`.

    The factor `of_logprobs` is only applied if `of_entropy` is given. It may overwrite the logits.
    """
    flatness = None
    if shape.cap:  # the slope of the cap, 1 - tanh(x) ** 2
        flatness = torch.square(logits, out=blocks.get("flatness", blocks.wide, len(logits)))
        flatness.mul_(-((shape.temperature / shape.cap) ** 2)).add_(1)
    if of_entropy is None:
        slope = _softmax_minus_onehot(logits, targets, blocks)
    else:
        slope = _slope_of_both(logits, targets, of_logprobs, of_entropy, blocks)
    return slope if flatness is None else slope.mul_(flatness)


def _softmax_minus_onehot(logits: Tensor, targets: Tensor, blocks: _Blocks) -> Tensor:
    """Return `-d logprob / d logits`, `[rows, V]`.

    The subtraction comes before the rounding to bfloat16, which would lose 1 - p of a confident token. The factors of
    rows are applied later, to the 16-bit matrices.
    """
    slope = torch.softmax(logits, dim=-1, out=blocks.get("softmax", blocks.wide, len(logits)))
    return slope.scatter_add_(1, targets[:, None], slope.new_full((len(slope), 1), -1.0))


def _slope_of_both(logits: Tensor, targets: Tensor, of_logprobs: Tensor, of_entropy: Tensor, blocks: _Blocks) -> Tensor:
    """Return `-d (of_logprobs * logprob + of_entropy * H) / d logits`, `[rows, V]`; the factors are `[rows]`.

    It overwrites the logits. `d H / d logits = -p (log p + H)`.
    """
    softmax = torch.softmax(logits, dim=-1, out=blocks.get("softmax", blocks.wide, len(logits)))
    logprobs = logits.sub_(logits.logsumexp(dim=-1, keepdim=True))
    negative_entropy = (softmax * logprobs).sum(dim=-1, keepdim=True)
    bonus = logprobs.sub_(negative_entropy).mul_(softmax).mul_(of_entropy[:, None])
    softmax.scatter_add_(1, targets[:, None], softmax.new_full((len(softmax), 1), -1.0))
    return softmax.mul_(of_logprobs[:, None]).add_(bonus)


def _logits(hidden: Tensor, weight: Tensor, bias: Tensor | None, shape: _Shape, blocks: _Blocks) -> Tensor:
    """Return the logits used for sampling, `[rows, V]`, in the wide type."""
    logits = _product(hidden, weight, blocks)
    if logits.dtype != blocks.wide:
        logits = blocks.get("logits", blocks.wide, len(hidden)).copy_(logits)
    return shape.apply_(logits if bias is None else logits.add_(bias))


def _narrow_logits(hidden: Tensor, weight: Tensor, shape: _Shape, blocks: _Blocks) -> Tensor:
    """Return logits `[rows, V]` in the type of the head; in the wide type if they are scaled, to avoid rounding."""
    return _product(hidden, weight, blocks) if shape.factor == 1 else _logits(hidden, weight, None, shape, blocks)


def _product(hidden: Tensor, weight: Tensor, blocks: _Blocks) -> Tensor:
    """Return `hidden @ weight.T`, `[rows, V]`, in the type of the head."""
    if hidden.dtype == blocks.head:
        return torch.mm(hidden, weight.T, out=blocks.get("product", blocks.head, len(hidden)))
    # on GPUs only, as in vLLM, and not tried: exact products of 16-bit numbers are summed in float32
    return torch.mm(hidden, weight.T, out_dtype=blocks.head)


class _Blocks:
    """Stores the `[chunk, V]` tensors of one pass.

    On a CPU they are reused by every pass: memory of this size would be mapped again each time, page by page, and
    caused a third of all page faults of a training step on the quickstart. An accelerator's allocator reuses memory
    automatically.
    """

    _reused: ClassVar[dict[tuple[str, torch.dtype, int, int], Tensor]] = {}

    def __init__(self, hidden: Tensor, vocabulary: int, chunk: int, head: torch.dtype) -> None:
        self.head = head
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
