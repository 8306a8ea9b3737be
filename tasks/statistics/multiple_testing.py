"""Corrects p-values for the number of benchmarks, and tests whether a policy has maintained a benchmark."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the p-values adjusted by Holm's step-down procedure (Holm 1979, Scand. J. Statist. 6(2), 65-70).

    If the hypotheses whose adjusted value is at most alpha are rejected, the probability of any false rejection is at
    most alpha, regardless of how the tests depend on each other. The i-th smallest of m values, from 1, becomes the
    largest of `min(1, (m - j + 1) p_j)` over j up to i, so that the order of the values is kept; equal values stay
    equal.

    Args:
        p_values: one for each benchmark, `[benchmarks]` in [0, 1].

    Returns:
        `[benchmarks]` in the given order, in [0, 1], none below its p-value.

    Raises:
        ValueError: a value is outside [0, 1] or NaN.
    """
    values = np.asarray(p_values, dtype=float)
    if not np.all((values >= 0) & (values <= 1)):
        raise ValueError(f"p-values must lie in [0, 1], got {values.tolist()}")
    order = np.argsort(values, kind="stable")
    adjusted = np.empty_like(values)
    steps = np.arange(len(values), 0, -1) * values[order]
    adjusted[order] = np.minimum(np.maximum.accumulate(steps), 1.0)
    return adjusted


def maintained(low: float, margin: float) -> bool:
    """Return True if a benchmark is maintained: the interval of the difference is above -margin (non-inferiority).

    Args:
        low: lower bound of the interval of after minus before. If it is NaN (no interval), the result is False.
        margin: the smallest loss that would matter, 0 or more, in the unit of the difference.

    Raises:
        ValueError: the margin is negative or NaN.
    """
    if not margin >= 0:
        raise ValueError(f"the margin must be 0 or more, got {margin}")
    return bool(low > -margin)
