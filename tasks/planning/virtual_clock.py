"""Implements an event loop in virtual time: instead of waiting, it moves its clock to the time of the next event.

A run of hours takes only the time of its computations. Nothing outside the loop may be awaited.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

TURN_SECONDS = 1e-6
"""Virtual seconds of one iteration of the loop, to avoid division by 0 in rates."""


class NothingToDoError(RuntimeError):
    """Deadlock: every task waits for something outside the loop."""


class _JumpingSelector(selectors.SelectSelector):
    """Moves the clock forward by `timeout` seconds instead of waiting."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        self.now += TURN_SECONDS
        if ready:
            return ready
        if timeout is None:
            raise NothingToDoError("deadlock: no timer is set, and nothing outside the loop is awaited")
        self.now += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; calls that would run in a thread run in the loop."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Return the seconds since the loop began."""
        return self._jumping.now

    def run_in_executor(  # type: ignore[override]
        self, executor: Executor | None, func: Callable[..., T], *args: Any
    ) -> asyncio.Future[T]:
        """Call `func` now."""
        future: asyncio.Future[T] = self.create_future()
        try:
            future.set_result(func(*args))
        except Exception as error:
            future.set_exception(error)
        return future


def run_in_virtual_time(main: Awaitable[T]) -> T:
    """Run `main` as `asyncio.run` does, in a loop in virtual time.

    Raises:
        NothingToDoError: `main` would wait forever.
    """

    async def run() -> T:
        return await main

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(run())
