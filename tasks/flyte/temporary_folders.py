"""Removes the empty folders that importing flytekit makes in the folder of temporary files."""

from __future__ import annotations

import atexit
import contextlib
import os


def remove_at_exit() -> None:
    """Remove flytekit's temporary folders of this process when it ends, if they contain no file."""
    from flytekit.configuration import Config
    from flytekit.core import data_persistence

    folders = (Config.__dataclass_fields__["local_sandbox_path"].default, data_persistence.flyte_tmp_dir)
    atexit.register(_remove_empty_folders, os.getpid(), *map(str, folders))


def _remove_empty_folders(process: int, *folders: str) -> None:
    if os.getpid() != process:  # a fork of the process, which still uses them
        return
    for folder in folders:
        for path, _, _ in os.walk(folder, topdown=False):
            with contextlib.suppress(OSError):  # it contains a file, or is gone
                os.rmdir(path)
