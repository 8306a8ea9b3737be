"""Reports an error as a person reads it: one sentence, and the traceback in a file that a second line names.

`RLVR_VERBOSE=1` in the environment prints the traceback as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
import traceback
from collections.abc import Callable
from datetime import datetime
from pathlib import Path

from tasks.failures import cause_in_infrastructure, mistake_in, sentence_on

FOLDER = "outputs/errors"
"""The folder of tracebacks; where it cannot be written, they are in the folder of temporary files."""


def report(error: BaseException) -> str:
    """Return the lines that a person reads of `error`; of what is not the user's mistake, a file has the traceback."""
    if os.environ.get("RLVR_VERBOSE") == "1":
        traceback.print_exception(error, file=sys.stderr)
    if mistake_in(error):
        return f"Error: {sentence_on(error)}"
    if cause_in_infrastructure(error):
        advice = "The same command goes on from what is done. "
    else:
        advice = "" if isinstance(error, OSError) else "This is a defect of the project or of a library. "
    return f"Error: {sentence_on(error)}\n{advice}Traceback: {_written(error)}"


def run_command(command: Callable[[], object]) -> None:
    """Call a command line's function; an error ends the process with `report` of it and exit status 1."""
    try:
        command()
    except Exception as error:
        raise SystemExit(report(error)) from None


def _written(error: BaseException) -> Path:
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
