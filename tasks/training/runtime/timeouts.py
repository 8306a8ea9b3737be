"""Awaits calls with a periodic log line and a time limit, so that no wait is silent or endless."""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable
from dataclasses import dataclass
from operator import attrgetter
from typing import Any, Self, TypeAlias, TypeVar

from tasks.config.loading import Config
from tasks.failures import InfrastructureError

logger = logging.getLogger(__name__)

LOG_SECONDS = 60.0
"""Seconds of waiting before the first log line, and between one log line and the next."""

T = TypeVar("T")

Status: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""Description of the wait, such as "the controller waits for the learner's step 3".

It may be a function, which is called whenever the text is needed, if the text changes during the wait.
"""


class StalledError(InfrastructureError):
    """A wait took longer than its limit; the message names who waits for what, and the limit."""


@dataclass(frozen=True)
class Limit:
    """A time limit and the option that sets it. Errors name the option.

    Attributes:
        seconds: the longest wait, seconds.
        option: full name of the option, such as `actors.hang_seconds`.
    """

    seconds: float
    option: str

    @classmethod
    def from_config(cls, config: Config, option: str) -> Self:
        """Return the limit that the option with this dotted name has in `config`."""
        return cls(attrgetter(option)(config), option)


NO_LIMIT = Limit(math.inf, "no limit")
"""A time limit that never ends a wait."""


async def wait_within(
    awaitable: Awaitable[T],
    status: Status,
    limit: Limit,
    *,
    error: type[InfrastructureError] = StalledError,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """Return the result of `awaitable`, and cancel it after `limit`; log `status` every minute until then.

    Args:
        awaitable: the awaited call.
        status: description of the wait, for the log lines and the error.
        limit: the longest time without a result or progress.
        error: class of the error that ends the wait.
        progress: function that returns a count; the time limit restarts whenever the count has changed.

    Raises:
        StalledError, or `error` if given: the time limit has passed.
    """
    return await _wait(awaitable, status, limit, error, progress)


async def wait_with_status(awaitable: Awaitable[T], status: Status) -> T:
    """Return the result of `awaitable`, however long it takes; log `status` every minute until then."""
    return await _wait(awaitable, status, NO_LIMIT, StalledError, lambda: 0)


async def _wait(
    awaitable: Awaitable[T],
    status: Status,
    limit: Limit,
    error: type[InfrastructureError],
    progress: Callable[[], int],
) -> T:
    task = asyncio.ensure_future(awaitable)
    loop = asyncio.get_running_loop()
    started, count = loop.time(), progress()
    try:
        while True:
            left = started + limit.seconds - loop.time()
            await asyncio.wait([task], timeout=min(LOG_SECONDS, max(left, 0)))
            if task.done():
                return task.result()
            newest = progress()
            if newest != count:
                started, count = loop.time(), newest
            passed = loop.time() - started
            text = await _format_status(status)
            if task.done():  # it may have ended while the text was computed
                return task.result()
            if passed >= limit.seconds:
                raise error(f"{text}; no progress for {limit.option} = {limit.seconds:g}")
            logger.warning("%s, since %.0f s", text, passed)
    finally:
        task.cancel()


async def _format_status(status: Status) -> str:
    text = status if isinstance(status, str) else status()
    return text if isinstance(text, str) else await text


async def run_until_first_ends(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs until the first of them ends; then cancel the others, and raise its error if it failed."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        await cancel(tasks)


async def cancel(tasks: Collection[asyncio.Task[Any]]) -> None:
    """Cancel tasks, and wait until they have ended. Their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
