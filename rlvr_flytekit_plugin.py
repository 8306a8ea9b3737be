"""Implements this project's flytekit plugin, which flytekit imports wherever the project is installed.

A pod's first process, `pyflyte-fast-execute`, downloads the code, waits for the process of the task, and imports
nothing else from this project. The client session that it used for the download is garbage-collected when the process
ends, and flytekit logs that as an error. This module must not import anything from `tasks`, because the installed code
might differ from the code that the process is going to run.
"""

import logging
import os

ROUTINE = ("Unclosed client session", "Unclosed connector")
"""Texts of flytekit's log lines that are dropped, as in every other process (`tasks.machine.quiet`)."""


def is_no_routine_line(record: logging.LogRecord) -> bool:
    """Return whether to log a record of flytekit's logger. Records with a text in `ROUTINE` are dropped."""
    return not any(text in record.getMessage() for text in ROUTINE)


if os.environ.get("RLVR_VERBOSE") != "1":
    logging.getLogger("flytekit").addFilter(is_no_routine_line)
