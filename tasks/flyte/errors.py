"""Errors of tasks as one sentence: on the terminal of a local run, and in Flyte's console."""

from __future__ import annotations

import atexit
import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps

import rich_click as click
from click.exceptions import Exit

from tasks.failures import LONGEST, MistakeError, mistake_in, one_line, sentence_on
from tasks.flyte.backend import backend_error
from tasks.machine.error_report import report

_IMAGE_WITHOUT_NAME = re.compile(r"Image Config with name (\w+) not found in the configuration")
"""Flytekit's words where a task's image has a name that no `--image` gives."""

LAST_LINES = 10
"""Lines at the end of a driver's log that Ray gives as the message of a job that failed; Flyte's console shows them."""

_TASK_PREFIX = re.compile(r"^Error: (Error encountered while [^\n]*:\n  )+")
"""Flytekit's words before the message of an error that a task raised on this machine."""


def on_the_terminal(pretty_print_exception: Callable[..., None]) -> Callable[..., None]:
    """Return a function that prints an error as its sentence (`error_report.report`), for flytekit's that prints it.

    Errors of click itself, such as an option that does not exist, are left to click.
    """

    @wraps(pretty_print_exception)
    def print_exception(error: Exception, *args: object, **kwargs: object) -> None:
        if isinstance(error, click.ClickException | Exit):
            pretty_print_exception(error, *args, **kwargs)
        else:
            explained = _missing_image(error) or backend_error(error) or error
            click.secho(_TASK_PREFIX.sub("Error: ", report(explained)), fg="red", err=True)

    return print_exception


def _missing_image(error: Exception) -> MistakeError | None:
    """Return the mistake of whoever packages or registers without images; None for another error."""
    name = _IMAGE_WITHOUT_NAME.search(str(error))
    if name is None:
        return None
    return MistakeError(
        f"image {name[1]!r} is not given: name all three, as in --image data=registry.example/team/rlvr-data:v1 "
        "--image generation=... --image training=...; make register REGISTRY=registry.example/team does"
    )


def in_the_console(get_traceback_str: Callable[..., str]) -> Callable[..., str]:
    """Return a function that makes a sentence of a pod's error, for flytekit's that makes a traceback of it.

    The traceback of what is not the user's mistake is in the log of the pod, whose last lines are the sentence.
    """

    @wraps(get_traceback_str)
    def text(error: Exception) -> str:
        if mistake_in(error) is None:
            traceback.print_exception(error, file=sys.stderr)
        sentence = sentence_on(error)
        # Flytekit logs more lines before the process ends, in which the sentence stands between quotes, or wrapped.
        atexit.register(end_log, sentence)
        return sentence

    return text


def end_log(sentence: str) -> None:
    """Print a sentence as one line, after which the last lines of the log are it and empty ones before it."""
    print("\n" * (LAST_LINES - 1) + one_line(sentence, LONGEST), file=sys.stderr, flush=True)
