"""Selects the files of a working directory that are sent to a cluster as its code archive.

    pyflyte run --remote --copy all ...   the working directory, without what is hidden or ignored (`archived_files`)
        ──► fast<digest>.tar.gz ──► a pod: unpacked into its working directory, next to the archive
                                          ──► the other nodes of a Ray cluster: the same files (`ray_job.copy_code`)

The archive includes the user's modules, packages and small files.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any

from flytekit.constants import CopyFileDetection
from flytekit.tools.ignore import FlyteIgnore, IgnoreGroup, StandardIgnore

from tasks.failures import MistakeError

MOST_MB = 50
"""Maximum total size of the files in an archive, in megabytes. Every pod of a run downloads the archive."""
ARCHIVES = "fast*.tar.gz"
"""Pattern of the names that flytekit gives to archives."""
SHOWN = 5
"""Maximum number of entries named in the error message."""


class ArchiveError(MistakeError):
    """Raised if the files to send to a cluster are too large."""


def all_files(list_files: Callable[..., tuple[list[str], str]]) -> Callable[..., tuple[list[str], str]]:
    """Patch flytekit's `ls_files` so that an archive of all files contains `archived_files`, up to `MOST_MB`."""

    @wraps(list_files)
    def listed(source: str, style: Any, *args: Any, **kwargs: Any) -> tuple[list[str], str]:
        if style is not CopyFileDetection.ALL:
            return list_files(source, style, *args, **kwargs)
        root = Path(source)
        paths = archived_files(root)
        check_size(root, paths)
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.relative_to(root)}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return [str(path) for path in paths], digest.hexdigest()

    return listed


def files_of(root: Path) -> list[Path]:
    """Return all files below a folder, sorted. In a git checkout, files that git ignores are left out."""
    names = os.listdir(root)
    if git := shutil.which("git"):
        command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=False)  # noqa: S603 no shell reads it
        if listed.returncode == 0:
            names = listed.stdout.decode().split("\0")[:-1]
    return sorted({path for name in names for path in _files_below(root / name)})


def archived_files(root: Path) -> list[Path]:
    """Return the files of a folder that are sent to a cluster.

    They are `files_of` without hidden files, which may be secrets (`.env`), and without files in `.flyteignore`.
    """
    ignored = IgnoreGroup(str(root), [StandardIgnore, FlyteIgnore])
    shown = (path for path in files_of(root) if not any(name[0] == "." for name in path.relative_to(root).parts))
    return [path for path in shown if not ignored.is_ignored(str(path.relative_to(root)))]


def check_size(root: Path, paths: list[Path]) -> None:
    """Check that the total size of the files is not too large.

    Raises:
        ArchiveError: it is too large. The message names the largest entries of the folder `root`.
    """
    sizes: Counter[str] = Counter()
    for path in paths:
        parts = path.relative_to(root).parts
        sizes["/".join(parts[:2])] += path.stat().st_size
    if (total := sum(sizes.values())) > MOST_MB * 1e6:
        largest = ", ".join(f"{name} ({size / 1e6:,.1f} MB)" for name, size in sizes.most_common(SHOWN))
        raise ArchiveError(
            f"{root}: the files that would be sent to the cluster are {total / 1e6:,.1f} MB, and at most {MOST_MB} are "
            f"sent; the largest are {largest}: name what no task reads in .flyteignore, and put data and models into "
            "storage"
        )


def unpacked_files(folder: Path) -> list[Path] | None:
    """Return the paths of the files unpacked from an archive into a folder, or None if there is no archive."""
    archives = sorted(folder.glob(ARCHIVES), key=lambda path: path.stat().st_mtime)
    if not archives:
        return None
    with tarfile.open(archives[-1]) as archive:
        return [Path(member.name) for member in archive if member.isfile()]


def _files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir() and not path.is_symlink() and path.name[0] != ".":
        for name in os.listdir(path):
            yield from _files_below(path / name)
