"""Judges that are asked over a network: coroutines on an event loop of their own, in a thread of their own.

They need no process, as what they run is our own code, and they wait most of the time: hundreds at once cost little.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any, Protocol

from tasks.verifiers.calls import Call, Messages
from tasks.verifiers.scores import CannotJudge, Score


class Correspondent(Protocol):
    """Somebody who judges elsewhere. Limits, retries and concurrency are its own."""

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Score a response; raises `CannotJudge` where that is impossible."""

    async def close(self) -> None:
        """Give up connections."""

    def usage(self) -> dict[str, float]:
        """Counters."""


class Correspondence:
    """The event loop, its thread, and the correspondents by verifier."""

    def __init__(self, correspondents: dict[str, Correspondent]) -> None:
        self._correspondents = correspondents
        self._loop = asyncio.new_event_loop()
        self._open: set[asyncio.Task[Score]] = set()
        self._thread = threading.Thread(target=self._loop.run_forever, name="judges", daemon=True)
        self._thread.start()

    def __contains__(self, verifier: str) -> bool:
        return verifier in self._correspondents

    def submit(self, call: Call, settle: Callable[[Score, bool], None]) -> None:
        """Have a call judged; `settle` is called once, from the loop's thread."""
        self._loop.call_soon_threadsafe(self._begin, call, settle)

    def usage(self) -> dict[str, float]:
        """The counters of all correspondents, each counted once."""
        return {name: value for each in set(self._correspondents.values()) for name, value in each.usage().items()}

    def close(self) -> None:
        """Settle what is open as errors, and end the thread."""
        if self._thread.is_alive():
            asyncio.run_coroutine_threadsafe(self._wind_up(), self._loop).result()
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()

    def _begin(self, call: Call, settle: Callable[[Score, bool], None]) -> None:
        task = self._loop.create_task(self._judge(call))
        self._open.add(task)

        def finished(task: asyncio.Task[Score]) -> None:
            self._open.discard(task)  # cancelled, it may not even have begun
            settle(Score.unjudged("the verifier pool was closed") if task.cancelled() else task.result(), False)

        task.add_done_callback(finished)

    async def _judge(self, call: Call) -> Score:
        try:
            return await self._correspondents[call.verifier].judge(*call)
        except CannotJudge as reason:
            return Score.unjudged(str(reason))
        except Exception as failure:  # a judge's own bug must reach the caller as an error, not vanish in the loop
            return Score.unjudged(f"{call.verifier} failed: {type(failure).__name__}: {failure}")

    async def _wind_up(self) -> None:
        everyone: list[Coroutine[Any, Any, None]] = [each.close() for each in set(self._correspondents.values())]
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        await asyncio.gather(*everyone)
