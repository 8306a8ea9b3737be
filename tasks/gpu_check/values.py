"""Checks values: attention against its dense computation, and log-probabilities against a plain `log_softmax`.

A 16-bit computation is not compared with another 16-bit computation but with its float32 reference. Its error may be
about as large as the error of the plain computation in 16 bits.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tasks.gpu_check.results import Findings
from tasks.gpu_check.sizes import WEIGHTS_STD, Sizes, save_random_model
from tasks.gpu_check.timing import measure_median_seconds
from tasks.training.learner import attention, liger, varlen
from tasks.training.learner.logprobs import token_logprobs
from tasks.training.learner.policy import LAYOUTS, Policy, register_attention

TIMES_PLAIN = 2.0
"""Largest error of a computation, as a multiple of the error of the plain computation in the same type."""
FUNCTIONS: dict[str, Callable[..., tuple[Tensor, None]]] = {
    attention.NAME: attention.packed_attention,
    varlen.NAME: varlen.varlen_attention,
}
"""Attention functions for packed rows, by name."""


def check_attention(findings: Findings, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
    """Compare the learner's attention on this machine with its dense computation: outputs, and three gradients."""
    name = register_attention(dtype)
    findings.figures["attention"] = name
    positions = torch.cat([torch.arange(n) for n in sizes.attention_row])[None].to(device)
    layout = LAYOUTS[name](positions)
    shape, scaling = sizes.model, sizes.model.head_size**-0.5
    torch.manual_seed(0)
    sides = [
        torch.randn(1, heads, positions.shape[1], shape.head_size, dtype=dtype, device=device)
        for heads in (shape.heads, shape.kv_heads, shape.kv_heads)
    ]
    weight = torch.randn(1, positions.shape[1], shape.heads, shape.head_size, dtype=dtype, device=device)
    module = torch.nn.Module()
    for window in (None, *sizes.windows):

        def compute_ours(q: Tensor, k: Tensor, v: Tensor, window: int | None = window) -> Tensor:
            options = {"layout": layout, "scaling": scaling, "sliding_window": window}
            return FUNCTIONS[name](module, q, k, v, None, **options)[0]

        def compute_plain(q: Tensor, k: Tensor, v: Tensor, window: int | None = window) -> Tensor:
            return compute_dense_attention(q, k, v, positions[0], scaling, window)

        exact = _compute_with_gradients(
            compute_plain,
            [side.to(_choose_exact_dtype(dtype)) for side in sides],
            weight.to(_choose_exact_dtype(dtype)),
        )
        of_ours = _compute_errors(_compute_with_gradients(compute_ours, sides, weight), exact)
        of_plain = _compute_errors(_compute_with_gradients(compute_plain, sides, weight), exact)
        parts = [f"{part}, {f'window {window}' if window else 'no window'}" for part in ("output", "dq", "dk", "dv")]
        _compare(findings, f"{name} differs from eager attention", parts, of_ours, of_plain, dtype)


def compute_dense_attention(
    query: Tensor, key: Tensor, value: Tensor, positions: Tensor, scaling: float, window: int | None
) -> Tensor:
    """Compute causal attention within the sequences of a packed row with a mask `[T, T]`, like eager attention.

    Args:
        query: `[1, Hq, T, D]`.
        key, value: `[1, Hk, T, D]`.
        positions: int64 `[T]`, counted from 0 in each sequence.
        scaling: factor on the scores.
        window: number of tokens that a token attends to, including itself. Optional. If None, it attends to all tokens
            before it.

    Returns:
        `[1, T, Hq, D]`.
    """
    sequence, index = (positions == 0).cumsum(0), torch.arange(len(positions), device=positions.device)
    before = index[:, None] - index
    seen = (sequence[:, None] == sequence) & (before >= 0) & (before < (window or len(positions)))
    key, value = (side.repeat_interleave(query.shape[1] // side.shape[1], dim=1) for side in (key, value))
    scores = (query @ key.transpose(2, 3) * scaling).masked_fill(~seen, float("-inf"))
    probs = torch.softmax(scores, dim=-1, dtype=torch.promote_types(query.dtype, torch.float32)).to(query.dtype)
    return (probs @ value).transpose(1, 2)


def check_policy(findings: Findings, sizes: Sizes, device: torch.device, dtype: torch.dtype, folder: Path) -> None:
    """Compare a policy with two layers, one with a window, on a packed row with transformers' eager attention."""
    shape = dataclasses.replace(sizes.model, window=sizes.windows[-1], full_layers=1)
    save_random_model(folder, shape, dtype, layers=2)
    positions = torch.cat([torch.arange(n) for n in sizes.attention_row])[None].to(device)
    ids = torch.randint(shape.vocabulary, positions.shape, device=device)

    def run_policy(dtype: torch.dtype, *, eager: bool) -> list[Tensor]:
        policy = Policy.load(folder, dtype=dtype, chunk=sizes.chunk).to(device).train()
        if eager:
            policy.model.set_attn_implementation("eager")
        sources = torch.arange(ids.shape[1] - 1, device=device)[None]
        logprobs, _ = policy(ids, positions, sources, ids[:, 1:], positions[:, 1:] > 0, 1.0)
        logprobs.sum().backward()
        layers = [
            parameter.grad for name, parameter in policy.model.named_parameters() if name.endswith("k_proj.weight")
        ]
        return [logprobs.detach(), *(gradient for gradient in layers if gradient is not None)]

    exact = run_policy(_choose_exact_dtype(dtype), eager=True)
    parts = ("log-probabilities", "gradient of layer 0 (window)", "gradient of layer 1")
    of_ours, of_eager = (
        _compute_errors(run_policy(dtype, eager=False), exact),
        _compute_errors(run_policy(dtype, eager=True), exact),
    )
    _compare(findings, "The policy differs from eager attention", parts, of_ours, of_eager, dtype)


def check_logprobs(findings: Findings, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
    """Compare log-probabilities in chunks, and their gradients, with a plain `log_softmax` over all logits."""
    torch.manual_seed(0)
    shape = sizes.model
    hidden = torch.randn(sizes.logprobs, shape.hidden, dtype=dtype, device=device)
    head = torch.randn(shape.vocabulary, shape.hidden, dtype=dtype, device=device) * WEIGHTS_STD
    targets = torch.randint(shape.vocabulary, (sizes.logprobs,), device=device)
    weight = torch.randn(sizes.logprobs, device=device)
    for temperature in (1.0, 0.7):

        def compute_ours(hidden: Tensor, head: Tensor, float32: bool, temperature: float = temperature) -> Tensor:
            options: Any = {"temperature": temperature, "chunk": sizes.chunk, "float32": float32}
            return token_logprobs(hidden, head, targets, **options)[0]

        def compute_plain(hidden: Tensor, head: Tensor, temperature: float = temperature) -> Tensor:
            logits = (hidden @ head.T).to(torch.promote_types(hidden.dtype, torch.float32)) / temperature
            return logits.log_softmax(-1).gather(1, targets[:, None])[:, 0]

        exact = _compute_with_gradients(
            compute_plain, [hidden.to(_choose_exact_dtype(dtype)), head.to(_choose_exact_dtype(dtype))], weight
        )
        of_plain = _compute_errors(_compute_with_gradients(compute_plain, [hidden, head], weight), exact)
        kernels = ("torch", "liger") if liger.can_run(hidden) else ("torch",)
        for backward, float32 in itertools.product(kernels, (False, True)):
            with contextlib.nullcontext() if backward == "liger" else _without_liger():
                of_ours = _compute_errors(
                    _compute_with_gradients(partial(compute_ours, float32=float32), [hidden, head], weight), exact
                )
            case = f"temperature {temperature}, backward by {backward}" + ", head in float32" * float32
            parts = tuple(f"{part}, {case}" for part in ("log-probabilities", "gradient of hidden", "gradient of head"))
            _compare(findings, "Log-probabilities differ from the reference", parts, of_ours, of_plain, dtype)


def check_liger(findings: Findings, sizes: Sizes, device: torch.device, dtype: torch.dtype) -> None:
    """Time log-probabilities with their gradients, with only torch and, if it is installed, with Liger's kernel."""
    hidden = torch.randn(sizes.logprobs, sizes.model.hidden, dtype=dtype, device=device, requires_grad=True)
    head = torch.randn(sizes.model.vocabulary, sizes.model.hidden, dtype=dtype, device=device, requires_grad=True)
    targets = torch.randint(sizes.model.vocabulary, (sizes.logprobs,), device=device)

    def run_pass(float32: bool = False) -> None:
        token_logprobs(hidden, head, targets, chunk=sizes.chunk, float32=float32)[0].sum().backward()

    findings.figures["tokens"] = sizes.logprobs
    with _without_liger():
        findings.figures["forward and backward by torch, ms"] = 1000 * measure_median_seconds(run_pass)
        in_float32 = partial(run_pass, float32=True)
        findings.figures["forward and backward with the head in float32, ms"] = 1000 * measure_median_seconds(
            in_float32
        )
    if liger.can_run(hidden):
        findings.figures["forward and backward with liger, ms"] = 1000 * measure_median_seconds(run_pass)
    else:
        findings.figures["liger-kernel"] = "installed, without a GPU" if liger.is_installed() else "not installed"


def _compare(
    findings: Findings,
    fault: str,
    parts: Sequence[str],
    errors: Sequence[float],
    usual: Sequence[float],
    dtype: torch.dtype,
) -> None:
    """Record the errors of all parts and of the plain computation, and which errors are too large."""
    for part, error, plain in zip(parts, errors, usual, strict=True):
        findings.figures[f"{part}: relative error"] = error
        findings.figures[f"{part}: the plain one's"] = plain
        findings.require(
            error <= TIMES_PLAIN * plain + torch.finfo(dtype).eps / 4,
            f"{fault}: the relative error of {part} is {error:.2g}, and that of the plain computation {plain:.2g}.",
        )


def _compute_with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], weight: Tensor) -> list[Tensor]:
    """Return the output of a function, and the gradients of `weight * output` with respect to its inputs."""
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    output = function(*inputs)
    gradients = torch.autograd.grad((output * weight).sum(), inputs)
    return [output.detach(), *gradients]


def _compute_errors(values: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Return the norm of the difference over the norm of the exact value, per pair; infinity for non-finite values."""
    errors = []
    for value, right in zip(values, exact, strict=True):
        error = float((value.to(right.dtype) - right).norm() / right.norm())
        errors.append(error if error == error else float("inf"))  # noqa: PLR0124 not a number
    return errors


def _choose_exact_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of the exact reference for computations in `dtype`."""
    return torch.float64 if dtype == torch.float32 else torch.float32


@contextlib.contextmanager
def _without_liger() -> Iterator[None]:
    """Compute log-probabilities within a block as if `liger-kernel` were not installed."""
    serves = liger.can_run
    liger.can_run = lambda tensor: False
    try:
        yield
    finally:
        liger.can_run = serves
