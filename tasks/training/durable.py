"""Files that are on the disk, and not in a machine's memory alone."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: Path) -> None:
    """Return when the file `path`, or the folder with all that is below it, is on the disk."""
    for each in (path, *path.rglob("*")):
        descriptor = os.open(each, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
