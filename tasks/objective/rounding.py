"""Tells rewards that differ from rewards that are equal but for rounding."""

from __future__ import annotations

from collections.abc import Sequence

ROUNDING = 1e-9
"""Largest difference of two rewards that is rounding and not a difference, as a share of the larger one's size.

A weighted sum of rewards such as 0.1 + 0.2 is not exactly 0.3. Dividing by the deviation of such a group would make
rounding an advantage of 1, or for `leave_one_out` a difference an advantage of 1e5.
"""


def are_equal(rewards: Sequence[float]) -> bool:
    """Return True if the rewards (at least one) differ by at most `ROUNDING` times the largest absolute value."""
    highest, lowest = max(rewards), min(rewards)
    return highest - lowest <= ROUNDING * max(abs(highest), abs(lowest))
