"""An event loop whose clock jumps: what waits for a time is run at once, in the order in which it would be.

A run of hours takes the time that its decisions take. Nothing outside the loop may be waited for.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Any, TypeVar

T = TypeVar("T")

TURN_SECONDS = 1e-6
"""What one turn of the loop takes, so that rates are those of something that took time."""


class NothingToDoError(RuntimeError):
    """Everything waits for something that nobody in the loop will do."""


class _JumpingSelector(selectors.SelectSelector):
    """In place of waiting for `timeout` seconds, it moves the clock forward by them."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        self.now += TURN_SECONDS
        if ready:
            return ready
        if timeout is None:
            raise NothingToDoError("nothing is due, and nobody outside is waited for")
        self.now += max(timeout, 0.0)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """An event loop in virtual time; what would run in a thread is run in its turn."""

    def __init__(self) -> None:
        self._jumping = _JumpingSelector()
        super().__init__(self._jumping)

    def time(self) -> float:
        """Seconds since the loop began."""
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
    """`asyncio.run` in a loop whose clock jumps.

    Raises:
        NothingToDoError: `main` waits for ever.
    """

    async def awaited() -> T:
        return await main

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(awaited())
