"""Raises `EpisodeOver` in an environment whose seconds are over, so that it can return a reward for what was done.

    environment: await sleep(99)      ── cancelled ──► EpisodeOver at the await
    environment: time.sleep(99), x()  ── SIGALRM  ───► EpisodeOver at that line

Code that cannot be interrupted (one call of a C library, another task that blocks) is ended by the session with
its process, some seconds later.
"""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Coroutine, Generator
from types import FrameType
from typing import Any

from tasks.environments.interface import EpisodeOver

SHORTEST = 0.001
"""Seconds of a timer for a limit that has passed while the environment waited for an answer."""


class TimeLimit:
    """The wall-clock limit of one environment process, which runs on the process's main thread and event loop.

    Attributes:
        reason: what the environment did, `took more than ... s`. Empty until the limit was reached.
    """

    def __init__(self) -> None:
        self.reason = ""
        self._left = 0.0
        self._in_code = False
        self._waits = False
        self._task: asyncio.Task[Any] | None = None

    async def run(self, environment: Coroutine[Any, Any, Any], seconds: float) -> Any:
        """Run an environment, and return its result. When its seconds are over, `EpisodeOver` is raised inside it, and
        it may still return a result.

        Args:
            environment: the coroutine of its call.
            seconds: seconds that it may take, without the time between `pause` and `resume`.
        """
        self.reason, self._seconds, self._waits = "", seconds, False
        self._task, self._loop = asyncio.current_task(), asyncio.get_running_loop()
        signal.signal(signal.SIGALRM, self._on_alarm)
        signal.setitimer(signal.ITIMER_REAL, seconds)
        try:
            return await _Interruptible(self, environment)
        finally:
            self._task = None
            signal.setitimer(signal.ITIMER_REAL, 0)

    def pause(self) -> None:
        """Stop the clock while the environment waits for an answer."""
        self._left, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        self._waits = True

    def resume(self) -> None:
        """Let the clock run again, if the limit has not been reached."""
        self._waits = False
        if not self.reason:
            signal.setitimer(signal.ITIMER_REAL, max(self._left, SHORTEST))

    def check(self) -> None:
        """Raise `EpisodeOver` if the limit was reached."""
        if self.reason:
            raise self.over()

    def over(self) -> EpisodeOver:
        """Return the exception for the environment."""
        return EpisodeOver(f"the environment {self.reason}")

    def _on_alarm(self, _number: int, _frame: FrameType | None) -> None:
        if self._in_code:
            self.reason = f"took more than {self._seconds:g} s"
            raise self.over()
        # The event loop runs: it waits for something, or runs a task that the environment started.
        self._loop.call_soon_threadsafe(self._interrupt)

    def _interrupt(self) -> None:
        if self._task is None or self._waits:  # it has returned, or `resume` sets the clock again
            return
        self.reason = f"took more than {self._seconds:g} s"
        self._task.cancel()


class _Interruptible:
    """An environment's coroutine. A cancellation because of the limit is an `EpisodeOver` in it."""

    def __init__(self, limit: TimeLimit, environment: Coroutine[Any, Any, Any]) -> None:
        self._limit = limit
        self._environment = environment

    def __await__(self) -> Generator[Any, Any, Any]:
        value: Any = None
        error: BaseException | None = None
        seen = False
        while True:
            try:
                awaited = self._step(value, error)
            except StopIteration as returned:
                return returned.value
            value = error = None
            try:
                value = yield awaited
            except GeneratorExit:
                self._environment.close()
                raise
            except asyncio.CancelledError as cancelled:
                error = cancelled
                if self._limit.reason and not seen:
                    seen, error = True, self._limit.over()
                    asyncio.current_task().uncancel()  # type: ignore[union-attr]
            except BaseException as raised:
                error = raised

    def _step(self, value: Any, error: BaseException | None) -> Any:
        """Let the environment run until it waits for something, and return that."""
        self._limit._in_code = True
        try:
            return self._environment.send(value) if error is None else self._environment.throw(error)
        finally:
            self._limit._in_code = False
