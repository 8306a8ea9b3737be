"""Reports an error to the user in one line, and writes the traceback to a file that a second line names.

With `RLVR_VERBOSE=1` in the environment the traceback is also printed.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tasks.failures import describe_error, find_infrastructure_cause, find_mistake

FOLDER = "outputs/errors"
"""The folder of tracebacks. If it cannot be written, the folder of temporary files is used."""


def format_report(error: BaseException) -> str:
    """Return the lines to print about `error`. If it is not a user error, its traceback is written to a file."""
    if os.environ.get("RLVR_VERBOSE") == "1":
        traceback.print_exception(error, file=sys.stderr)
    if find_mistake(error):
        return f"Error: {describe_error(error)}"
    if find_infrastructure_cause(error):
        advice = "The same command continues from what is done. "
    else:
        advice = "" if isinstance(error, OSError) else "This is a defect of the project or of a library. "
    return f"Error: {describe_error(error)}\n{advice}Details: {_write_traceback(error)}"


def run_command(command: Callable[[], object]) -> None:
    """Call the function of a command. If it raises an error, print `format_report(error)` and exit with status 1."""
    try:
        command()
    except Exception as error:
        raise SystemExit(format_report(error)) from None


def _write_traceback(error: BaseException) -> Path:
    text = "".join(traceback.format_exception(error))
    name = f"{datetime.now():%Y%m%d-%H%M%S}-{os.getpid()}.txt"
    for folder in (Path(FOLDER), Path(tempfile.gettempdir())):
        try:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(text)
        except OSError:
            continue
        return folder / name
    sys.stderr.write(text)
    return Path(os.devnull)
