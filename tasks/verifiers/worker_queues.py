"""Schedules calls of unknown duration: calls that have used little CPU time run first.

Each call first gets a small budget of CPU time. If it exceeds its budget it is ended, and starts again with four times
as much, behind all calls with smaller budgets:

    call ──► fast queue ──────────────────────────────────────────────────────────► result
              │  `processes` workers, the first budget
              └─ overrun ──► slow queue ──────────────────────────────────────────► result
                              half as many workers at a lower priority, budgets of 4, 16, ... times the first, the limit

A slow call then waits only for hanging calls that are at its own budget, not for all of their time. In return, a
hanging call costs up to two thirds more than its limit. (Multilevel feedback queues: Corbató et al., 1962,
https://doi.org/10.1145/1460833.1460871.) The workers may be processes (`make_verifier_processes`) or sandboxes
(`code.programs`).
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Generic, TypeVar

Workers = TypeVar("Workers")
Result = TypeVar("Result")
Work = Callable[[Workers, float, bool], Awaitable[Result | None]]
"""Runs one call with one of these workers and a budget in seconds; the last argument is True for a second attempt.

It returns None if the call exceeded the budget, and raises `WorkerLost` if its worker ended."""

GROWTH = 4
"""Factor between consecutive budgets of a call."""
SLOW_NICE = 5
"""Niceness of the slow queue's workers, which gives them a third of the CPU share of a normal process."""


class WorkerLost(Exception):  # noqa: N818 - named after the event
    """A worker has ended during a call."""


def generate_cpu_budgets(first: float, limit: float) -> Iterator[float]:
    """Yield the budgets of one call in seconds, in order; the last one is its limit."""
    budget = first
    while budget < limit / 2:  # the last budget must be much larger than the one before
        yield budget
        budget *= GROWTH
    yield limit


class WorkerQueues(Generic[Workers]):
    """A fast queue for the first try of each call, and a slow queue for calls that exceeded their first CPU budget.

    Both belong to one event loop.

    Attributes:
        workers: the workers of the fast queue, and the workers of the slow queue.
        slow_calls: calls that exceeded their first budget.
    """

    def __init__(self, processes: int, first: float, limit: float, make: Callable[[int, int], Workers]) -> None:
        """Create both queues.

        Args:
            processes: calls of the fast queue that run at the same time; the slow queue runs half as many.
            first: CPU seconds of a call's first budget.
            limit: CPU seconds of its last budget.
            make: returns the workers of a queue, given how many calls run at the same time, and their niceness.
        """
        self._first, *self._further = generate_cpu_budgets(first, limit)
        slow = (processes + 1) // 2
        self._fast_slots, self._slow_slots = PrioritySemaphore(processes), PrioritySemaphore(slow)
        self.workers = (make(processes, 0), make(slow, SLOW_NICE))
        self.slow_calls = 0

    async def run_fast(self, work: Work[Workers, Result]) -> Result | None:
        """Run a call under its first budget, and return what `work` returned.

        Raises:
            WorkerLost: two workers have ended during the call.
        """
        result = await _run(self._fast_slots, self.workers[0], work, self._first)
        self.slow_calls += result is None
        return result

    async def run_slow(self, work: Work[Workers, Result]) -> Result | None:
        """Run a call that exceeded its first budget with its further budgets, as `run_fast` does."""
        for budget in self._further:
            result = await _run(self._slow_slots, self.workers[1], work, budget)
            if result is not None:
                return result
        return None


async def _run(slots: PrioritySemaphore, workers: Workers, work: Work[Workers, Result], budget: float) -> Result | None:
    async with slots.hold(budget):
        try:
            return await work(workers, budget, False)
        except WorkerLost:
            return await work(workers, budget, True)


class PrioritySemaphore:
    """A semaphore that serves the smallest budget first, and equal ones in order of arrival."""

    def __init__(self, count: int) -> None:
        """Create it with `count` free slots."""
        self._free = count
        self._waiting: list[tuple[float, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def hold(self, budget: float) -> AsyncIterator[None]:
        """Wait for a slot, and keep it for the duration of the block."""
        if self._free:
            self._free -= 1
        else:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heapq.heappush(self._waiting, (budget, next(self._order), turn))
            try:
                await turn
            except asyncio.CancelledError:
                if turn.done() and not turn.cancelled():  # the slot was assigned while the wait was being cancelled
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
