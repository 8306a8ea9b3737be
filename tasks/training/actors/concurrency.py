"""How many sequences an engine is given at a time: as many as its KV cache holds, found out while it works.

Additive increase, multiplicative decrease (Chiu and Jain 1989). A preemption means that the sequences have outgrown the
cache: one of them loses what it has computed, and computes it again. Sequences grow while they are generated, so that
the number that fits is not known before.
"""

from __future__ import annotations

DECREASE = 0.75
"""What is left of the limit after a preemption."""
INCREASE = 16
"""Steps from 0 to the largest limit."""
FULL = 0.9
"""Share of the KV cache above which nothing is added."""


class Concurrency:
    """The limit of one engine.

    Args:
        most: sequences that the engine runs at a time.
        least: the limit never falls below that.

    Attributes:
        limit: sequences that it should be given now.
    """

    def __init__(self, most: int, least: int) -> None:
        self._most = most
        self._least = min(least, most)
        self.limit = most

    def observe(self, running: int, kv_cache_usage: float, preemptions: int) -> None:
        """Take in what was seen since the last call.

        Args:
            running: sequences that the engine runs.
            kv_cache_usage: share of its KV cache, 0 to 1.
            preemptions: since the last call.
        """
        if preemptions:
            # The sequences that it runs are those that fit; it was given more, or it would not have preempted.
            self.limit = max(self._least, int(DECREASE * min(self.limit, max(running, 1) + preemptions)))
        elif kv_cache_usage < FULL and running >= self.limit:
            self.limit = min(self._most, self.limit + max(1, self._most // INCREASE))
