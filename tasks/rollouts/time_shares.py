"""Divides the wall time of an engine among the workloads that it serves at the same time."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager


class TimeShares:
    """Measures the engine time of several workloads, in proportion to their requests in flight at each moment.

    The shares add up to the time during which any request was in flight. A workload whose last responses are long is
    charged for the time when the engine has little else to do. A division by tokens would hide this time.

    Attributes:
        seconds: seconds of engine time, by workload.
    """

    def __init__(self, workloads: int, clock: Callable[[], float] = time.perf_counter) -> None:
        self.seconds = [0.0] * workloads
        self._under_way = [0] * workloads
        self._clock = clock
        self._since = 0.0

    @contextmanager
    def request(self, workload: int) -> Iterator[None]:
        """Count a request of a workload as in flight while the block runs."""
        self._update(workload, 1)
        try:
            yield
        finally:
            self._update(workload, -1)

    def _update(self, workload: int, change: int) -> None:
        now, total = self._clock(), sum(self._under_way)
        if total:
            share = (now - self._since) / total
            for index, count in enumerate(self._under_way):
                self.seconds[index] += share * count
        self._since = now
        self._under_way[workload] += change
