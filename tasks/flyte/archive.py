"""Selects the files of a working directory that are sent to a cluster as its code archive.

    pyflyte run --remote --copy all ...   the working directory, without what is hidden or ignored (`archived_files`)
        ──► fast<digest>.tar.gz ──► a pod: unpacked into its working directory, next to the archive
                                          ──► the other nodes of a Ray cluster: the same files (`ray_job.copy_code`)

The archive includes the user's modules, packages and small files. For a project that is installed, a copy of its
packages and of the working directory is sent instead (`launch_folder`).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import subprocess
import tarfile
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, NamedTuple

from flytekit.constants import CopyFileDetection
from flytekit.tools.ignore import FlyteIgnore, IgnoreGroup, StandardIgnore

from tasks.failures import MistakeError
from tasks.machine.packages import HOME, PACKAGES
from tasks.storage.locations import outputs_folder, resolve_folder, sandbox_folder

MOST_MB = 50
"""Maximum total size of the files in an archive, in megabytes. Every pod of a run downloads the archive."""
ARCHIVES = "fast*.tar.gz"
"""Pattern of the names that flytekit gives to archives."""
SHOWN = 5
"""Maximum number of entries named in the error message."""


class ArchiveError(MistakeError):
    """Raised if the files to send to a cluster are too large."""


def list_all_files(list_files: Callable[..., tuple[list[str], str]]) -> Callable[..., tuple[list[str], str]]:
    """Patch flytekit's `ls_files` so that an archive of all files contains `archived_files`, up to `MOST_MB`."""

    @wraps(list_files)
    def list_archive(source: str, style: Any, *args: Any, **kwargs: Any) -> tuple[list[str], str]:
        if style is not CopyFileDetection.ALL:
            return list_files(source, style, *args, **kwargs)
        root = Path(source)
        paths = archived_files(root)
        check_size(root, paths)
        digest = hashlib.sha256()
        for path in paths:
            digest.update(f"{path.relative_to(root)}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
        return [str(path) for path in paths], digest.hexdigest()

    return list_archive


def list_folder_files(root: Path) -> list[Path]:
    """Return all files below a folder, sorted. In a git checkout, files that git ignores are left out."""
    names = os.listdir(root)
    if git := shutil.which("git"):
        command = [git, "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(command, cwd=root, capture_output=True, check=False)  # noqa: S603 no shell reads it
        if listed.returncode == 0:
            names = listed.stdout.decode().split("\0")[:-1]
    return sorted({path for name in names for path in _list_files_below(root / name)})


def archived_files(root: Path) -> list[Path]:
    """Return the files of a folder that are sent to a cluster.

    These are the files of `list_folder_files` without hidden ones, which may be secrets (`.env`), and without files in
    `.flyteignore`.
    """
    ignored = IgnoreGroup(str(root), [StandardIgnore, FlyteIgnore])
    shown = (
        path for path in list_folder_files(root) if not any(name[0] == "." for name in path.relative_to(root).parts)
    )
    return [path for path in shown if not ignored.is_ignored(str(path.relative_to(root)))]


class Sent(NamedTuple):
    """The files that a launch sends.

    Attributes:
        folder: the folder that contains the user's files.
        files: their paths.
        packages: paths of files of this project that are outside of the folder.
    """

    folder: Path
    files: list[Path]
    packages: list[Path]


_copies: dict[Path, Sent] = {}
"""The files in each folder of `launch_folder`."""


@contextlib.contextmanager
def launch_folder() -> Iterator[Path]:
    """Yield the folder to send to a cluster: the working directory if it is the checkout, or a temporary copy.

    The copy contains the packages of this project and the files of the working directory that are not ignored
    and no outputs, and nothing else of the environment.

    Raises:
        ArchiveError: the files of the working directory are too large.
    """
    here = Path.cwd()
    if here.resolve() == HOME.resolve():
        yield HOME
        return
    results = [folder.resolve() for folder in (outputs_folder(), sandbox_folder(), resolve_folder(""))]
    files = [path for path in archived_files(here) if not any(map(path.resolve().is_relative_to, results))]
    check_size(here, files)
    packages = list_package_files()
    with tempfile.TemporaryDirectory() as temporary:
        root = Path(temporary).resolve()
        for base, paths in ((here, files), (HOME, packages)):
            for path in paths:
                target = root / path.relative_to(base)
                target.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(path, target)
        _copies[root] = Sent(here, files, packages)
        try:
            yield root
        finally:
            del _copies[root]


def list_package_files() -> list[Path]:
    """Return the files of this project's packages, sorted, without bytecode."""
    files = (path for name in PACKAGES for path in _list_files_below(HOME / name))
    return sorted(path for path in files if path.parent.name != "__pycache__")


def collect_sent_files(root: Path) -> Sent:
    """Return the files that a launch of the folder `root` sends."""
    return _copies.get(root.resolve()) or Sent(root, archived_files(root), [])


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


def find_unpacked_files(folder: Path) -> list[Path] | None:
    """Return the paths of the files unpacked from an archive into a folder, or None if there is no archive."""
    archives = sorted(folder.glob(ARCHIVES), key=lambda path: path.stat().st_mtime)
    if not archives:
        return None
    with tarfile.open(archives[-1]) as archive:
        return [Path(member.name) for member in archive if member.isfile()]


def _list_files_below(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir() and not path.is_symlink() and path.name[0] != ".":
        for name in os.listdir(path):
            yield from _list_files_below(path / name)
