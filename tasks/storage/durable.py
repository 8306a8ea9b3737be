"""Files that are on the disk, and not in a machine's memory alone."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from tasks.failures import InfrastructureError


class WriteError(InfrastructureError):
    """A file could not be written, as its disk is full or failed; the message has the room that is left there."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """For a block that has torch or safetensors write `path`, a file or a folder: they hide the system's errors.

    Raises:
        WriteError: in the place of theirs.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        free = shutil.disk_usage(there).free
        raise WriteError(f"{path} could not be written: {error}; {free / 2**30:.1f} GiB are free there") from error


def sync(path: Path) -> None:
    """Return when the file `path`, or the folder with all that is below it, is on the disk."""
    for each in (path, *path.rglob("*")):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def replace_folder(partial: Path, folder: Path) -> None:
    """A folder that is complete takes the place of what an earlier attempt left there."""
    if folder.exists():
        shutil.rmtree(folder)
    partial.rename(folder)
