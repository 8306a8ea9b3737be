"""Checks folders of runs, and finds the newest with a file: `outputs/latest` may be of a part of the pipeline."""

from __future__ import annotations

import re
from pathlib import Path

from tasks.failures import MistakeError
from tasks.storage.locations import outputs_folder

PUBLISHED = re.compile(r"\d{8}-\d{6}-.+")
"""Form of the names of folders with results: the start of the run, and a suffix. They sort by their start."""


def check_run(run: Path) -> None:
    """Check that the folder of a run exists.

    Raises:
        MistakeError: it does not. The message names the newest run next to it or in `outputs_folder`, if there is one.
    """
    if run.is_dir():
        return
    if runs := _list_results(run.parent) or _list_results(outputs_folder()):
        raise MistakeError(f"{run}: no such folder; the newest run is {runs[-1]}")
    raise MistakeError(
        f"{run}: no such folder, and no runs in {outputs_folder()}: go to the folder of your run, or name it"
    )


def make_hint(run: Path, name: str) -> str:
    """Return the end of a message on a folder of results without the file `name`: the newest folder with it.

    The text is empty if no folder next to `run` has it.
    """
    having = [path for path in _list_results(run.parent) if (path / name).exists()]
    return f"; the newest run with it is {having[-1]}" if having else ""


def _list_results(folder: Path) -> list[Path]:
    """Return the folders of results in a folder, which may not exist, oldest first."""
    paths = folder.glob("*") if folder.is_dir() else ()
    return sorted((path for path in paths if PUBLISHED.fullmatch(path.name)), key=lambda path: path.name)
