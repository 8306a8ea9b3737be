"""Shows errors of tasks as short messages, on the terminal of a local run and in Flyte's console."""

from __future__ import annotations

import atexit
import re
import sys
import traceback
from collections.abc import Callable
from functools import wraps

import rich_click as click
from click.exceptions import Exit

from tasks.failures import LONGEST, MistakeError, describe_error, find_mistake, one_line
from tasks.flyte.backend import convert_backend_error
from tasks.flyte.workflow_names import convert_unknown_workflow
from tasks.machine.error_report import format_report
from tasks.storage.addresses import convert_refused_credentials

_IMAGE_WITHOUT_NAME = re.compile(r"Image Config with name (\w+) not found in the configuration")
"""Flytekit's message if a task's image has a name that no `--image` option gives."""

LAST_LINES = 10
"""Number of last lines of a driver's log that Ray uses as the message of a failed job. Flyte's console shows them."""

_TASK_PREFIX = re.compile(r"^Error: (Error encountered while [^\n]*:\n  )+")
"""Flytekit's prefix to the message of an error that a task raised on this machine."""


def print_on_terminal(pretty_print_exception: Callable[..., None]) -> Callable[..., None]:
    """Patch flytekit's `pretty_print_exception` to print an error as a short message (`error_report.report`).

    Click handles its own errors, such as an unknown option.
    """

    @wraps(pretty_print_exception)
    def print_exception(error: Exception, *args: object, **kwargs: object) -> None:
        if isinstance(error, click.ClickException | Exit):
            pretty_print_exception(error, *args, **kwargs)
        else:
            explained = (
                _convert_missing_image(error)
                or convert_unknown_workflow(error)
                or convert_backend_error(error)
                or convert_refused_credentials(error)
                or error
            )
            click.secho(_TASK_PREFIX.sub("Error: ", format_report(explained)), fg="red", err=True)

    return print_exception


def _convert_missing_image(error: Exception) -> MistakeError | None:
    """Return the user error for packaging or registering without images, or None for any other error."""
    name = _IMAGE_WITHOUT_NAME.search(str(error))
    if name is None:
        return None
    return MistakeError(
        f"image {name[1]!r} is not given: name all three, as in --image data=registry.example/team/rlvr-data:v1 "
        "--image generation=... --image training=...; make register REGISTRY=registry.example/team does"
    )


def show_in_console(get_traceback_str: Callable[..., str]) -> Callable[..., str]:
    """Patch flytekit's `get_traceback_str` to return a short message instead of a traceback for a pod's error.

    If it is not a user error, the traceback is in the log of the pod. The last line of the log is the message.
    """

    @wraps(get_traceback_str)
    def text(error: Exception) -> str:
        if find_mistake(error) is None:
            traceback.print_exception(error, file=sys.stderr)
        sentence = describe_error(error)
        # Flytekit logs more lines before the process ends, which contain the message in quotes or wrapped.
        atexit.register(end_log, sentence)
        return sentence

    return text


def end_log(sentence: str) -> None:
    """Print a message as one line after empty lines, so that they fill the last lines of the log."""
    print("\n" * (LAST_LINES - 1) + one_line(sentence, LONGEST), file=sys.stderr, flush=True)
