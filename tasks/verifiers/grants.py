"""Who goes first: calls that have had little time, by grants that grow.

Nobody knows how long a call will take. So each is granted little at first; what overruns its grant is ended, and begun
anew with four times as much, behind all that have had less. A slow call then waits for the hanging ones that it meets
at its own grant, not for all their time; for that a hanging one costs up to two thirds more than its limit. (Multilevel
feedback queues: Corbató et al., 1962, https://doi.org/10.1145/1460833.1460871.)
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

GROWTH = 4
PATIENT_NICE = 5
"""Of whatever runs beyond its first grant: a third of the share of what runs beside it, on cores that are all taken."""


def grants(first: float, limit: float) -> Iterator[float]:
    """Seconds that a call is granted, one after the other; the last is its limit."""
    granted = first
    while granted < limit / 2:  # the last but one leaves something to gain by the last
        yield granted
        granted *= GROWTH
    yield limit


def few(processes: int) -> int:
    """How many run beyond their first grant where so many run within it."""
    return (processes + 1) // 2


class PrioritySemaphore:
    """A number of places, handed out to whoever asks for the smallest grant; first come, first served among equals."""

    def __init__(self, count: int) -> None:
        """`count` places, all free."""
        self._free = count
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def place(self, grant: float) -> AsyncIterator[None]:
        """A place, for the length of the block."""
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
