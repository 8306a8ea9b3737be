"""Retries calls to storage or to the hub after temporary errors, with pauses."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from tasks.failures import one_line

logger = logging.getLogger(__name__)
Result = TypeVar("Result")

WAITS = (1.0, 4.0, 16.0)
"""Default seconds of pause before each retry."""


def call_with_retries(
    call: Callable[[], Result],
    waits: Sequence[float],
    may_pass: Callable[[Exception], bool],
    about: str,
) -> Result:
    """Return the result of `call`. If it raises a temporary error, retry after each of `waits` seconds.

    Args:
        call: the function to call, without arguments.
        waits: seconds before each retry. There is one attempt more than waits.
        may_pass: returns True if an error is temporary. Other errors are raised immediately.
        about: name of the call in log lines. The first retry is logged as a warning.

    Raises:
        Exception: the error of the last attempt, or the first error that is not temporary.
    """
    for attempt, seconds in enumerate(waits):
        try:
            return call()
        except Exception as error:  # fsspec's file systems and the hub's clients have no common error type
            if not may_pass(error):
                raise
            # One warning explains the delay. Lines of later attempts would only repeat it.
            level = logging.INFO if attempt else logging.WARNING
            left = f"at most {len(waits)} times" if len(waits) > 1 else "once"
            logger.log(level, "%s: %s; trying again in %g s, %s", about, one_line(error), seconds, left)
            time.sleep(seconds)
    return call()
