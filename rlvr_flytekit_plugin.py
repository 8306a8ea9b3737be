"""Flytekit's plugin of this project: flytekit imports it wherever the project is installed.

A pod's first process, `pyflyte-fast-execute`, downloads the code, waits for the process of the task, and imports
nothing else of this project. The session by which it downloaded is collected when the process ends, and flytekit logs
that as an error. Nothing of `tasks` is imported here: it might be other code than what a process is to run.
"""

import logging
import os

ROUTINE = ("Unclosed client session", "Unclosed connector")
"""Texts of the lines of flytekit's logger that are dropped, as in every other process (`tasks.machine.quiet`)."""


def is_no_routine_line(record: logging.LogRecord) -> bool:
    """Return whether a record of flytekit's logger is to be logged: it has none of the texts in `ROUTINE`."""
    return not any(text in record.getMessage() for text in ROUTINE)


if os.environ.get("RLVR_VERBOSE") != "1":
    logging.getLogger("flytekit").addFilter(is_no_routine_line)
