"""The order of calls whose duration is unknown: those that have had little CPU time go first.

Each call is granted little time at first. If it overruns its grant it is ended, and begun anew with four times as much,
queued behind all calls with smaller grants:

    grants, in multiples of the first:   1 ──► 4 ──► 16 ──► ... ──► the limit

A slow call then waits only for the hanging ones that are at its own grant, not for all their time. The price: a hanging
call costs up to two thirds more than its limit. (Multilevel feedback queues: Corbató et al., 1962,
https://doi.org/10.1145/1460833.1460871.)
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

GROWTH = 4
"""Factor from one grant of a call to its next."""
PATIENT_NICE = 5
"""Niceness of processes that run beyond their first grant: a third of the CPU share of a normal process beside them."""


def grants(first: float, limit: float) -> Iterator[float]:
    """Yield the grants of one call in seconds, in order; the last is its limit."""
    granted = first
    while granted < limit / 2:  # the last but one leaves something to gain by the last
        yield granted
        granted *= GROWTH
    yield limit


def few(processes: int) -> int:
    """Return the number of processes for calls beyond their first grant, where `processes` serve first grants."""
    return (processes + 1) // 2


class PrioritySemaphore:
    """A semaphore that serves the smallest grant first, and equal ones in order of arrival."""

    def __init__(self, count: int) -> None:
        """Create it with `count` free slots."""
        self._free = count
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def hold(self, grant: float) -> AsyncIterator[None]:
        """Wait for a slot, and hold it for the length of the block."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (grant, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # handed over while the wait was being cancelled
                    self._release()
                raise
        try:
            yield
        finally:
            self._release()

    def _release(self) -> None:
        while self._waiting:
            _, _, turn = heapq.heappop(self._waiting)
            if not turn.done():
                turn.set_result(None)
                return
        self._free += 1
