"""Statistics of several benchmarks together: p-values corrected for their number, and what a policy has maintained."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def holm(p_values: Sequence[float] | np.ndarray) -> np.ndarray:
    """Return the p-values adjusted by Holm's step-down procedure (Holm 1979, Scand. J. Statist. 6(2), 65-70).

    To reject the hypotheses whose adjusted value is at most alpha keeps the probability of any false rejection at or
    below alpha, however the tests depend on one another. The i-th smallest of m values, from 1, becomes the largest of
    `min(1, (m - j + 1) p_j)` over j up to i, so that the order of the values stays; equal values stay equal.

    Args:
        p_values: one for each benchmark, `[benchmarks]` in [0, 1].

    Returns:
        `[benchmarks]` in the order given, in [0, 1], none below its p-value.

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
    """Return whether a benchmark is maintained: the interval of the difference lies above -margin (non-inferiority).

    Args:
        low: lower bound of the interval of after less before; NaN, where there is no interval, maintains nothing.
        margin: the loss from which on it would matter, 0 or more, in the unit of the difference.

    Raises:
        ValueError: the margin is negative or NaN.
    """
    if not margin >= 0:
        raise ValueError(f"the margin must be 0 or more, got {margin}")
    return bool(low > -margin)
