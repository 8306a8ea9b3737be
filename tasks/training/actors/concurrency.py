"""The number of sequences that an engine is given at a time: as many as its KV cache holds, measured while it works.

Additive increase, multiplicative decrease (Chiu and Jain 1989). A preemption means that the sequences have outgrown the
cache: one of them loses what it has computed, and computes it again. Sequences grow while they are generated, so that
the number that fits is not known beforehand.
"""

from __future__ import annotations

DECREASE = 0.75
"""Factor by which a preemption lowers the limit."""
INCREASE = 16
"""Number of increases that lead from 0 to the largest limit."""
FULL = 0.9
"""Share of the KV cache in use above which the limit is not raised."""


class Concurrency:
    """The limit on the sequences of one engine, adapted to the preemptions that it reports.

    Args:
        most: largest number of sequences that the engine runs at a time; the limit begins with it.
        least: smallest limit.

    Attributes:
        limit: number of sequences that the engine should be given at a time now.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self.limit = most

    def observe(self, running: int, kv_cache_usage: float, preemptions: int) -> None:
        """Adapt the limit to the newest figures of the engine.

        Args:
            running: number of sequences that the engine runs.
            kv_cache_usage: share of its KV cache in use, 0 to 1.
            preemptions: number of preemptions since the last call.
        """
        if preemptions:
            # The sequences that it runs are those that fit; it was given more, or it would not have preempted.
            self.limit = max(self._least, int(DECREASE * min(self.limit, max(running, 1) + preemptions)))
        elif kv_cache_usage < FULL and running >= self.limit:
            self.limit = min(self._most, self.limit + max(1, self._most // INCREASE))
