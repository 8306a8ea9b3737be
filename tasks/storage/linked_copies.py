"""Copies model folders without writing the weights again, by hard links."""

from __future__ import annotations

import os
import shutil
import stat
from pathlib import Path

WEIGHTS = ".safetensors"
"""Suffix of the files that copies share."""
WRITING = stat.S_IWUSR | stat.S_IWGRP | stat.S_IWOTH


def copy_folder(source: Path, target: Path) -> None:
    """Copy a folder. Its weights are hard-linked and made read-only if the file system allows it."""
    shutil.copytree(source, target, copy_function=_copy)


def _copy(source: str, target: str) -> None:
    if source.endswith(WEIGHTS):
        try:
            os.link(os.path.realpath(source), target)
            # Writing to one of the names would change all copies.
            os.chmod(target, os.stat(target).st_mode & ~WRITING)
        except OSError:  # another file system, or one without links
            pass
        else:
            return
    shutil.copy2(source, target)
