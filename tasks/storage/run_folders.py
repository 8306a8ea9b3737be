"""Finds the newest results that contain a file, because `outputs/latest` may be of a part of the pipeline."""

from __future__ import annotations

import re
from pathlib import Path

PUBLISHED = re.compile(r"\d{8}-\d{6}-.+")
"""Form of the names of folders with results: the start of the run, and a suffix. They sort by their start."""


def hint_on(run: Path, name: str) -> str:
    """Return the end of a message on a folder of results without the file `name`: the newest folder with it.

    The text is empty if no folder next to `run` has it.
    """
    beside = run.parent.glob("*") if run.parent.is_dir() else ()
    having = [path for path in beside if PUBLISHED.fullmatch(path.name) and (path / name).exists()]
    return f"; the newest run with it is {max(having, key=lambda path: path.name)}" if having else ""
