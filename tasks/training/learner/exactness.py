"""Compares a function with its replacement: the errors of both against float64, of values and gradients."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Function = Callable[..., Tensor | tuple[Tensor, ...]]

TIMES = 2.0
"""Largest error of a function that may replace another, as a multiple of the error of the other."""
_NARROW = (torch.float32, torch.bfloat16, torch.float16)


class _StayInFloat64(TorchDispatchMode):
    """Ignores casts of float64 tensors to smaller types, such as a norm's cast of its input to float32."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        options = dict(kwargs or {})
        casts = func is torch.ops.aten._to_copy.default and args[0].dtype == torch.float64
        if casts and options.get("dtype") in _NARROW:
            options["dtype"] = torch.float64
        return func(*args, **options)


def is_as_exact(
    replacement: Function, original: Function, inputs: Sequence[Tensor], constants: Sequence[Tensor] = ()
) -> bool:
    """Return whether a function computes what another does, in the type of its inputs.

    The root mean square error of each result, and of the gradient of each input, must be at most `TIMES` that of the
    original function. Both errors are measured against the original function in float64.

    Args:
        replacement, original: functions of `inputs` and then `constants`.
        inputs: tensors that the results are differentiated by.
        constants: tensors that need no gradient.
    """
    with _StayInFloat64():
        exact = _compute_results(
            original, [tensor.double() for tensor in inputs], [tensor.double() for tensor in constants]
        )
    usual, ours = (
        _compute_errors(_compute_results(function, inputs, constants), exact) for function in (original, replacement)
    )
    return all(our <= TIMES * error for our, error in zip(ours, usual, strict=True))


def _compute_results(function: Function, inputs: Sequence[Tensor], constants: Sequence[Tensor]) -> list[Tensor]:
    """Return a function's results, and their gradient by each input, for one random change of the results."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    values = function(*leaves, *constants)
    values = (values,) if isinstance(values, Tensor) else values
    generator = torch.Generator().manual_seed(0)
    changes = [  # bfloat16 numbers, so that they are the same in every type
        torch.randn(value.shape, generator=generator).bfloat16().to(value.device, value.dtype) for value in values
    ]
    return [*values, *torch.autograd.grad(values, leaves, changes)]


def _compute_errors(results: Sequence[Tensor], exact: Sequence[Tensor]) -> list[float]:
    """Return the root mean square error of each result, or NaN if one has another shape."""
    return [
        float((value.double() - right).square().mean().sqrt()) if value.shape == right.shape else float("nan")
        for value, right in zip(results, exact, strict=True)
    ]
