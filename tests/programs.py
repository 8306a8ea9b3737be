"""The programs of the environment that the tests run in, and `rlvr` from the code that is tested."""

import sys
from pathlib import Path

RLVR = (sys.executable, "-m", "tasks.commands")
"""The command `rlvr`. The installed script might be of another checkout."""


def started(program: str) -> tuple[str, ...]:
    """The words that start a program that a document names."""
    return RLVR if program == "rlvr" else (str(Path(sys.executable).with_name(program)),)
