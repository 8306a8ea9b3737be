"""Largest differences of log-probabilities that count as rounding, by type."""

from __future__ import annotations

from collections.abc import Mapping

from tasks.machine.precision import Auto, Dtype

ROUNDING: Mapping[Dtype, float] = {"float32": 1e-4, "bfloat16": 0.05, "float16": 0.01}
"""Largest mean difference of a sequence's log-probabilities that counts as rounding, nats."""


def rounding(*dtypes: Dtype | Auto) -> float:
    """Return the tolerance between two computations, nats: that of the coarser of their types.

    Raises:
        KeyError: one of them is `auto`.
    """
    return max(ROUNDING[dtype] for dtype in dtypes)  # type: ignore[index]
