"""Adapts the number of concurrent sequences of an engine to the capacity of its KV cache.

It uses additive increase and multiplicative decrease (Chiu and Jain 1989). A preemption means that the sequences have
outgrown the cache, and that one of them has to recompute its KV cache. Sequences grow while they are generated, so the
number that fits is not known in advance.
"""

from __future__ import annotations

DECREASE = 0.75
"""Factor applied to the limit after a preemption."""
INCREASE = 16
"""Number of increases from 0 to the largest limit."""
FULL = 0.9
"""Share of the KV cache in use above which the limit is not raised."""


class Concurrency:
    """Limits the concurrent sequences of one engine, based on the preemptions that it reports.

    Args:
        most: largest number of sequences that the engine runs at a time, and the initial limit.
        least: smallest limit.

    Attributes:
        limit: current limit on the number of concurrent sequences.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self.limit = most

    def observe(self, running: int, kv_cache_usage: float, preemptions: int) -> None:
        """Adapt the limit to the newest statistics of the engine.

        Args:
            running: number of sequences that the engine runs.
            kv_cache_usage: share of its KV cache in use, 0 to 1.
            preemptions: number of preemptions since the last call.
        """
        if preemptions:
            # The sequences that still run are the number that fits; it had more, or it would not have preempted.
            self.limit = max(self._least, int(DECREASE * min(self.limit, max(running, 1) + preemptions)))
        elif kv_cache_usage < FULL and running >= self.limit:
            self.limit = min(self._most, self.limit + max(1, self._most // INCREASE))
