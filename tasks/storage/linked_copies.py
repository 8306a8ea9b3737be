"""Copies model folders without writing the weights again, by hard links."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

WEIGHTS = ".safetensors"
"""Suffix of the files that copies share."""
READING = stat.S_IRUSR | stat.S_IRGRP | stat.S_IROTH
WRITING = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder. Its weights are hard-linked and made read-only if the file system allows it, for all who may read
    the folder.
    """
    shutil.copytree(source, target, copy_function=_copy)


def _copy(source: str, target: str) -> None:
    if not source.endswith(WEIGHTS):
        shutil.copy2(source, target)
        return
    # Whoever may read the folder may read the weights, which safetensors writes for their owner alone.
    readers = os.stat(os.path.dirname(target)).st_mode & READING
    try:
        os.link(os.path.realpath(source), target)
        # Writing to one of the names would change all copies.
        os.chmod(target, (os.stat(target).st_mode | readers) & ~WRITING)
    except OSError:  # another file system, or one without links
        shutil.copy2(source, target)
        os.chmod(target, os.stat(target).st_mode | readers)
