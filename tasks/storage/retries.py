"""Calls to storage and to the hub that are repeated after pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable
from typing import TypeVar

from tasks.failures import one_line

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITS = (1.0, 4.0, 16.0)
"""Seconds of pause before each further attempt, unless a caller has others."""


def retrying(
    call: Callable[[], Result],
    waits: Iterable[float],
    may_pass: Callable[[Exception], bool],
    about: str,
) -> Result:
    """Return what `call` returns; repeat it after each of `waits` seconds where it raised what may pass.

    Args:
        call: what is done.
        waits: seconds before each further attempt; there is one attempt more than waits.
        may_pass: whether a later attempt may get past an error; any other error is raised at once.
        about: what is being reached, for the log: one line per retry.
    """
    for seconds in waits:
        try:
            return call()
        except Exception as error:  # fsspec's file systems and the hub's clients share no kind of error
            if not may_pass(error):
                raise
            logger.info("%s: %s; trying again in %g s", about, one_line(error), seconds)
            time.sleep(seconds)
    return call()
