"""Waiting that is seen: who waits for what, said after a while, ended in an error after a limit or by a failure."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Coroutine, Iterable
from typing import Any, TypeVar

from tasks.failures import InfrastructureError

logger = logging.getLogger(__name__)

SAY_SECONDS = 60.0
"""So long something may take without a word, and from one word to the next."""

T = TypeVar("T")


class StalledError(InfrastructureError):
    """Something took longer than its limit; the message says who waits for whom."""


async def within(
    awaitable: Awaitable[T],
    waits_for: str | Callable[[], str | Awaitable[str]],
    *,
    limit: float,
    option: str,
    error: type[InfrastructureError] = StalledError,
    progress: Callable[[], int] = lambda: 0,
) -> T:
    """The result of `awaitable`; every minute without one a line says what is waited for.

    Args:
        waits_for: who waits for what, as in "the controller waits for the learner's step 3"; a function says how it
            stands when it is called, or returns what does.
        limit: seconds after which the awaitable is cancelled.
        option: where the limit comes from, for the error's sentence.
        progress: a count; the limit begins anew where it has changed.

    Raises:
        StalledError, or what `error` says: after `limit`.
    """
    task = asyncio.ensure_future(awaitable)
    loop = asyncio.get_running_loop()
    started, reached = loop.time(), progress()
    try:
        while True:
            left = started + limit - loop.time()
            await asyncio.wait([task], timeout=min(SAY_SECONDS, max(left, 0)))
            if task.done():
                return task.result()
            if reached != (reached := progress()):
                started = loop.time()
            passed = loop.time() - started
            said = waits_for if isinstance(waits_for, str) else waits_for()
            if not isinstance(said, str):
                said = await said
            if task.done():
                return task.result()
            if passed >= limit:
                raise error(f"{said}; nothing came for {option} = {limit:g}")
            logger.warning("%s, since %.0f s", said, passed)
    finally:
        task.cancel()


async def until_the_first(jobs: Iterable[Coroutine[Any, Any, None]]) -> None:
    """Run jobs until the first of them ends; then cancel the others, and raise its error if it failed."""
    tasks = [asyncio.create_task(job) for job in jobs]
    try:
        done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def awaited(future: asyncio.Future[None]) -> None:
    """What the future says, as a coroutine."""
    await future
