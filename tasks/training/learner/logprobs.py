"""Computes log-probabilities and entropy of predicted tokens without storing the logits of a whole micro-batch.

Logits are by far the largest tensor of a training step: 16k tokens times a vocabulary of 49k are 3 GiB in float32, and
the backward pass of the softmax needs them again. Here they exist for one chunk of tokens at a time, and the backward
pass recomputes them: four matrix products instead of three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tasks.recipe.learner import CHUNK_ON_CPU
from tasks.training.learner import liger, logits
from tasks.training.learner.logits import Blocks, Shape, prepare_for_device

if TYPE_CHECKING:
    from torch.autograd.function import FunctionCtx

    class _Context(FunctionCtx):
        shape: Shape
        chunk: int
        entropy_gradient: bool
        fused: bool
        head: torch.dtype
        saved_tensors: tuple[Tensor, Tensor, Tensor, Tensor | None]
        needs_input_grad: tuple[bool, ...]


def token_logprobs(
    hidden: Tensor,
    lm_head_weight: Tensor,
    targets: Tensor,
    *,
    bias: Tensor | None = None,
    scale: float = 1.0,
    cap: float | None = None,
    temperature: float = 1.0,
    chunk: int = CHUNK_ON_CPU,
    entropy_gradient: bool = False,
    fused: bool = True,
    float32: bool = False,
) -> tuple[Tensor, Tensor]:
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
        entropy_gradient: make the entropy differentiable too, which costs another pass over each `[chunk, V]` in the
            backward pass.
        fused: compute the backward pass with Liger's kernel if it can run (`liger`).
        float32: compute the head in float32 for 16-bit inputs: neither logits nor their gradient are rounded to 16 bits
            (ScaleRL, arXiv:2510.13786). Gradients are rounded to the dtype of `hidden` at the end.

    Returns:
        Log-probabilities `[T]`, nats, differentiable in `hidden`, `lm_head_weight` and `bias`; and entropy `[T]`, nats,
        detached unless `entropy_gradient`.

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
    shape = Shape(scale, cap, temperature)
    head = torch.promote_types(hidden.dtype, torch.float32) if float32 else hidden.dtype
    logprobs, entropy = _TokenLogprobs.apply(
        hidden, lm_head_weight, bias, targets, shape, chunk, entropy_gradient, fused, head
    )
    return logprobs, entropy


def can_be_fused(cap: float | None, bias: Tensor | None, entropy_gradient: bool) -> bool:
    """Return whether Liger's kernel can compute a head's gradient: without cap, bias and entropy in the loss."""
    return not (entropy_gradient or cap or bias is not None)


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: _Context,
        hidden: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        targets: Tensor,
        shape: Shape,
        chunk: int,
        entropy_gradient: bool,
        fused: bool,
        head: torch.dtype,
    ) -> tuple[Tensor, Tensor]:
        blocks = Blocks(hidden.device, len(weight), chunk)
        values = prepare_for_device(logits.values, hidden.device, blocks)
        left, right = (hidden, weight) if hidden.is_cuda else (hidden.to(head), weight.to(head))
        wide = torch.promote_types(head, torch.float32)
        chosen, entropy = (hidden.new_zeros(len(hidden), dtype=wide) for _ in range(2))
        for start in range(0, len(hidden), chunk):
            rows = slice(start, start + chunk)
            product = _compute_product(left[rows], right, head, blocks)  # [chunk, V]
            chosen[rows], entropy[rows] = values(product, bias, targets[rows], shape)
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
        blocks = Blocks(hidden.device, len(weight), ctx.chunk)
        slope_of = prepare_for_device(logits.compute_slope, hidden.device, blocks)
        exact_hidden, exact_weight = hidden.to(ctx.head), weight.to(ctx.head)
        left, right = (hidden, weight) if hidden.is_cuda else (exact_hidden, exact_weight)
        wide = torch.promote_types(ctx.head, torch.float32)
        grad_hidden = torch.zeros_like(hidden) if needs_hidden else None
        grad_bias = torch.zeros(len(weight), 1, dtype=wide, device=hidden.device) if needs_bias else None
        grad_weight: Tensor | None = None
        for start in range(0, len(hidden), ctx.chunk):
            rows = slice(start, start + ctx.chunk)
            upstream = -shape.factor * grad_logprobs[rows, None]  # [chunk, 1]
            product = _compute_product(left[rows], right, ctx.head, blocks)  # [chunk, V]
            if ctx.fused and liger.can_run(hidden):
                slope = _compute_slope_by_liger(product, targets[rows], shape, blocks)
            else:
                of_entropy = grad_entropy[rows] if ctx.entropy_gradient else None
                slope = slope_of(product, bias, targets[rows], grad_logprobs[rows], of_entropy, shape)
            if ctx.entropy_gradient:  # the sum of two slopes has no common factor
                upstream = torch.full_like(upstream, -shape.factor)
            if grad_bias is not None:
                grad_bias += slope.to(wide).T @ upstream
            if slope.dtype != ctx.head:
                slope = blocks.get("product", ctx.head, len(slope)).copy_(slope)
            if grad_hidden is not None:
                grad_hidden[rows] = (slope @ exact_weight) * upstream
            if needs_weight:
                of_rows = slope.T @ (exact_hidden[rows] * upstream).to(ctx.head)  # [V, H]
                # summed in float32: bfloat16 would round away what later chunks add
                grad_weight = of_rows if grad_weight is None else grad_weight.to(upstream.dtype).add_(of_rows)
        if needs_weight:
            grad_weight = torch.zeros_like(weight) if grad_weight is None else grad_weight.to(weight.dtype)
        if grad_bias is not None:
            grad_bias = grad_bias[:, 0].to(hidden.dtype)
        return grad_hidden, grad_weight, grad_bias, None, None, None, None, None, None


def _compute_product(hidden: Tensor, weight: Tensor, head: torch.dtype, blocks: Blocks) -> Tensor:
    """Return `hidden @ weight.T`, `[rows, V]`, in the type of the head."""
    if hidden.dtype == head:
        return torch.mm(hidden, weight.T, out=blocks.get("product", head, len(hidden)))
    # on GPUs only, as in vLLM, and not tried: exact products of 16-bit numbers are summed in float32
    return torch.mm(hidden, weight.T, out_dtype=head)


def _compute_slope_by_liger(product: Tensor, targets: Tensor, shape: Shape, blocks: Blocks) -> Tensor:
    """Return `logits.compute_slope`, `[rows, V]`, without a cap, a bias and an entropy; it overwrites the product.

    Its type is the product's, or a wider one if logits are scaled, to avoid rounding them.
    """
    if shape.factor != 1:
        product = logits.compute_logits(product, None, shape, blocks=blocks)
    return liger.softmax_minus_onehot_(product, targets)
