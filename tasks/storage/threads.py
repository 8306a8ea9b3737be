"""Runs calls to storage in daemon threads, so that a run and its process can end even if a call hangs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from concurrent import futures
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

logger = logging.getLogger(__name__)

PATIENCE_SECONDS = 60.0
"""Seconds to wait at the end of a run for unfinished calls to storage."""

T = TypeVar("T")


def call_in_thread(function: Callable[..., T], *arguments: Any, **options: Any) -> Future[T]:
    """Call `function` in a new daemon thread. The process can end without waiting for it."""
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = function(*arguments, **options)
        except BaseException as error:  # passed on to the caller
            future.set_exception(error)
        else:
            future.set_result(result)

    future.set_running_or_notify_cancel()
    threading.Thread(target=run, name="in-thread", daemon=True).start()
    return future


class PatientThreads(ThreadPoolExecutor):
    """An executor for `asyncio.to_thread` whose shutdown waits a limited time for running calls.

    The event loop's default executor waits without a limit, so that an error about hanging storage would never be
    shown. It is a `ThreadPoolExecutor` because asyncio accepts no other executor. Each call has a separate thread.

    Args:
        seconds: maximum time to wait.
    """

    def __init__(self, seconds: float = PATIENCE_SECONDS) -> None:
        super().__init__(1)
        self._seconds = seconds
        self._running: set[Future[Any]] = set()

    def submit(self, function: Callable[..., T], /, *arguments: Any, **options: Any) -> Future[T]:
        """Start `function` immediately in a new thread."""
        future = call_in_thread(function, *arguments, **options)
        self._running.add(future)
        future.add_done_callback(self._running.discard)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Wait up to the limit for running calls, and log a warning if some do not end."""
        if not wait:
            return
        if hanging := futures.wait(set(self._running), timeout=self._seconds).not_done:
            logger.warning(
                "%d calls to storage have not returned within %g s: the run ends without them",
                len(hanging),
                self._seconds,
            )
