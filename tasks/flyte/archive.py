"""Choose the files of a working directory that are sent to a cluster as its archive of code.

    pyflyte run --remote --copy all ...   the working directory, without what is hidden or ignored (`archived_files`)
        ──► fast<digest>.tar.gz ──► a pod: unpacked into its working directory, next to the archive
                                          ──► the other nodes of a Ray cluster: the same files (`ray_job.copy_code`)

A user's modules, packages and small files are among them.
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
"""Largest size in megabytes of the files of an archive: every pod of a run fetches it."""
ARCHIVES = "fast*.tar.gz"
"""The name that flytekit gives an archive, as a pattern."""
SHOWN = 5
"""Entries that the refusal of an archive names."""


class ArchiveError(MistakeError):
    """The files that would be sent to a cluster have too many megabytes."""


def all_files(list_files: Callable[..., tuple[list[str], str]]) -> Callable[..., tuple[list[str], str]]:
    """Patch flytekit's `ls_files`: an archive of all files contains `archived_files`, and is refused if too large."""

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

    They are `files_of` without what is hidden, which may be a secret (`.env`), and what `.flyteignore` names.
    """
    ignored = IgnoreGroup(str(root), [StandardIgnore, FlyteIgnore])
    shown = (path for path in files_of(root) if not any(name[0] == "." for name in path.relative_to(root).parts))
    return [path for path in shown if not ignored.is_ignored(str(path.relative_to(root)))]


def check_size(root: Path, paths: list[Path]) -> None:
    """Check that files are not too large to be sent together.

    Raises:
        ArchiveError: they are; its message names the largest entries of the folder `root`.
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
    """Return the paths in a folder of the files that an archive put there, or None if no archive was unpacked."""
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
