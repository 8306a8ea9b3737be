"""Threads for what touches storage, which may hang: neither a run's end nor its process's waits for them for ever."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0

T = TypeVar("T")


def in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Call `function` in a thread of its own, which the end of the process does not wait for."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = function(*arguments, **options)
        except BaseException as error:  # the caller's, whatever it is
            future.set_exception(error)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()
    threading.Thread(target=run, name="in-thread", daemon=True).start()
    return future


class PatientThreads(ThreadPoolExecutor):
    """What an event loop may use for `asyncio.to_thread`; the loop's end waits so many seconds for what still runs.

    The loop's own waits without end, so that an error about storage that hangs would never be seen. A pool in name
    alone, as asyncio takes no other executors: each call has a thread.
    """

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(1)
        self._seconds = seconds
        self._running: set[Future[Any]] = set()

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        """Call `function` now."""
        future = in_thread(function, *arguments, **options)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait a while for what still runs, and say so where it goes on."""
        if not wait:
            return
        if hanging := futures.wait(set(self._running), timeout=self._seconds).not_done:
            logger.warning(
                "what was asked of storage has not come back for %g s (calls: %d): the run ends without it",
                self._seconds,
                len(hanging),
            )
