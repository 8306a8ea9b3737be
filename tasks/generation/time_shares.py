"""Divides the wall time of an engine among the workloads that it serves together."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeShares:
    """A clock of several workloads: time passes for each in proportion to its requests under way at that moment.

    The shares add up to the time in which any request was under way. A workload whose last responses are long pays for
    the time in which the engine has little else to do, which a division by tokens would hide.

    Attributes:
        seconds: by workload.
    """

    def __init__(self, workloads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = [0.0] * workloads
        self._under_way = [0] * workloads
        self._clock = clock
        self._since = 0.0

    @contextmanager
    def request(self, workload: int) -> Iterator[None]:
        """Count a request of a workload as under way while the block runs."""
        self._change(workload, 1)
        try:
            yield
        finally:
            self._change(workload, -1)

    def _change(self, workload: int, change: int) -> None:
        now, total = self._clock(), sum(self._under_way)
        if total:
            share = (now - self._since) / total
            for index, count in enumerate(self._under_way):
                self.seconds[index] += share * count
        self._since = now
        self._under_way[workload] += change
