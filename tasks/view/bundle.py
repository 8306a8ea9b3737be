"""Writes the responses of an evaluation as a folder of static files, which replaces a server when results are sent."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tasks.failures import one_line
from tasks.view import viewer
from tasks.view.environment import ensure_environment
from tasks.view.responses import find_responses
from tasks.view.selection import select

README = "README.txt"
"""Name of the file that says what a folder contains and leaves out. Without responses it is the only file."""
NOT_WANTED = "The evaluation file has no `view: true`, so this folder has no responses."

logger = logging.getLogger(__name__)


def write_bundle(tables: Mapping[str, Path], folder: Path) -> None:
    """Write the responses in tables of a run to a folder of static files, bounded as a view without a selection.

    A folder is written in any case. If the viewer cannot be installed or fails, its only file says why, and a warning
    is logged: a run does not fail because of it.

    Args:
        tables: the tables by name, as in a folder of results.
        folder: the folder, which does not exist.
    """
    try:
        messages = _write(tables, folder)
    except Exception as error:
        logger.warning(f"view: the responses are not written: {one_line(error)}")
        shutil.rmtree(folder, ignore_errors=True)
        messages = [f"The responses are not written: {one_line(error)}"]
    folder.mkdir(parents=True, exist_ok=True)
    (folder / README).write_text("\n".join(messages) + "\n")


def _write(tables: Mapping[str, Path], folder: Path) -> list[str]:
    with tempfile.TemporaryDirectory() as scratch:
        run, logs = Path(scratch, "run"), Path(scratch, "logs")
        run.mkdir()
        for name, path in tables.items():
            os.symlink(path.resolve(), run / f"{name}.parquet")
        responses = find_responses(run)
        chosen = select(responses)
        made = ensure_environment(logger.info)
        viewer.write_logs(made, responses, chosen.logs, logs, lambda path, count: None)
        viewer.write_bundle(made, logs, folder)
    return [
        f"{chosen.counts}. A file server shows them: python -m http.server",
        *(f"Left out: {message}" for message in chosen.left_out),
    ]
