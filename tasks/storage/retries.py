"""Repeating a call to storage or to the hub after pauses, while its error may pass."""

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
    """Return the result of `call`; where it raises an error that may pass, repeat it after each of `waits` seconds.

    Args:
        call: the function to call, without arguments.
        waits: seconds before each further attempt; there is one attempt more than waits.
        may_pass: returns True for an error that a later attempt may not meet; any other error is raised at once.
        about: name of what is called, for the log lines; the first retry is a warning.

    Raises:
        Exception: the last attempt's error, or the first that may not pass.
    """
    for attempt, seconds in enumerate(waits):
        try:
            return call()
        except Exception as error:  # fsspec's file systems and the hub's clients share no kind of error
            if not may_pass(error):
                raise
            # One line says why nothing happens; the following attempts' would only repeat it.
            level = logging.INFO if attempt else logging.WARNING
            logger.log(level, "%s: %s; trying again in %g s", about, one_line(error), seconds)
            time.sleep(seconds)
    return call()
