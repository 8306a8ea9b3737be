"""Back-pressure that threads and coroutines share."""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future


class Slots:
    """A number of places, handed out first come, first served.

    A thread that waits for a place blocks; a coroutine that waits leaves its event loop free. Every place that was
    taken must be given back with `release`.
    """

    def __init__(self, limit: int) -> None:
        """`limit` places, all free."""
        self._lock = threading.Lock()
        self._free = limit
        self._waiting: deque[Future[None]] = deque()

    def acquire(self) -> None:
        """Take a place, blocking the calling thread until there is one."""
        place = self._ask()
        try:
            place.result()
        except BaseException:  # Ctrl-C while waiting
            if not place.cancel():  # granted all the same
                self.release()
            raise

    async def acquire_async(self) -> None:
        """Take a place, suspending the calling coroutine until there is one."""
        place = self._ask()
        try:
            await asyncio.wrap_future(place)
        except asyncio.CancelledError:
            if not place.cancel():  # granted while the wait was being cancelled
                self.release()
            raise

    def release(self) -> None:
        """Give a place back, to whoever has waited longest."""
        with self._lock:
            heir = next((place for place in self._drain() if place.set_running_or_notify_cancel()), None)
            self._free += heir is None
        if heir is not None:
            heir.set_result(None)

    def _ask(self) -> Future[None]:
        place: Future[None] = Future()
        with self._lock:
            if self._free:
                self._free -= 1
                place.set_running_or_notify_cancel()
                place.set_result(None)
            else:
                self._waiting.append(place)
        return place

    def _drain(self) -> Iterator[Future[None]]:
        while self._waiting:
            yield self._waiting.popleft()
