"""Measures and locks the folders that runs on this machine write.

A run takes a shared lock on each folder, and `prune` takes an exclusive lock. So `prune` removes nothing that a run
uses, and a run that starts in the meantime waits. The system releases the locks of a process when it ends.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from pathlib import Path

from tasks.storage.lease import RunInUseError
from tasks.storage.locations import outputs_folder, resolve_folder, sandbox_folder

logger = logging.getLogger(__name__)

USER_SPACE = "user_space"
"""Name of the folder that flytekit makes in the folder of its local files when it is imported."""
UNITS = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))
"""Units of sizes in bytes, from large to small."""


def list_written_folders() -> list[Path]:
    """Return the existing folders of results, runs and Flyte's local cache, without folders inside another of them."""
    folders = _list_folders()
    return [folder for folder in folders if not set(folders).intersection(folder.parents)]


def _list_folders() -> list[Path]:
    folders = (outputs_folder(), resolve_folder(""), sandbox_folder())
    return sorted({folder.resolve() for folder in folders if folder.is_dir()})


@contextlib.contextmanager
def remove_empty_folders() -> Iterator[None]:
    """Remove the folders of runs that the block creates and leaves empty, as a command does that is refused."""
    folders = (outputs_folder(), resolve_folder(""), sandbox_folder() / USER_SPACE)
    new = {path for folder in folders for path in (folder, *folder.parents) if not path.exists()}
    try:
        yield
    finally:
        for path in sorted(new, key=lambda path: len(path.parts), reverse=True):
            with contextlib.suppress(OSError):  # it contains something, or does not exist
                path.rmdir()


@contextlib.contextmanager
def prevent_pruning() -> Iterator[None]:
    """Prevent pruning while the block, a run on this machine, runs. Wait for a `prune` in progress first."""
    with remove_empty_folders(), contextlib.ExitStack() as stack:
        # Preflight reports folders that cannot be created or written. Runs on file systems without locks are allowed.
        for folder in (outputs_folder(), resolve_folder(""), sandbox_folder()):
            with contextlib.suppress(OSError):
                folder.mkdir(parents=True, exist_ok=True)
        for folder in _list_folders():
            with contextlib.suppress(OSError):
                _lock_shared(folder, stack.enter_context(_open_folder(folder)))
        yield


def _lock_shared(folder: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        logger.warning("%s is being pruned: the run waits for that", folder)
        fcntl.flock(descriptor, fcntl.LOCK_SH)


@contextlib.contextmanager
def require_idle() -> Iterator[None]:
    """Run the block only if no run uses the folders. Runs that start in the meantime wait for its end.

    Raises:
        RunInUseError: a run or another `prune` uses one of the folders.
    """
    with contextlib.ExitStack() as stack:
        for folder in _list_folders():
            descriptor = stack.enter_context(_open_folder(folder))
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                processes = ", ".join(_find_holders(os.fstat(descriptor).st_ino)) or "another process"
                raise RunInUseError(f"{folder}: {processes} uses it: try again when that has ended") from None
        yield


@contextlib.contextmanager
def _open_folder(folder: Path) -> Iterator[int]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def _find_holders(inode: int) -> list[str]:
    """Return the processes with a lock on a file. Empty if the system does not report them (proc(5), `/proc/locks`)."""
    with contextlib.suppress(OSError):
        locks = [line.split() for line in Path("/proc/locks").read_text().splitlines()]
        return [f"process {lock[4]}" for lock in locks if "FLOCK" in lock and lock[5].endswith(f":{inode}")]
    return []


def describe_size() -> str:
    """Return a line with the size of all files that runs have written. A file with several names is counted once.

    Raises:
        OSError: the working directory does not exist any more.
    """
    sizes: dict[tuple[int, int], int] = {}
    folders = list_written_folders()
    for folder in folders:
        for parent, _, names in os.walk(folder):
            for name in names:
                with contextlib.suppress(OSError):  # another run has removed it
                    about = os.lstat(f"{parent}/{name}")
                    sizes[about.st_dev, about.st_ino] = about.st_size
    here = Path.cwd()
    shown = [str(folder.relative_to(here) if folder.is_relative_to(here) else folder) for folder in folders]
    verb, size = "contains" if len(shown) == 1 else "contain", format_size(sum(sizes.values()))
    return f"{' and '.join(shown)} {verb} {size} (rlvr prune shows what can be removed)"


def format_size(size: float) -> str:
    """Format a size in bytes: 3.9 GB, 12 MB."""
    for unit, name in UNITS:
        if size >= unit:
            amount = size / unit
            return f"{amount:.1f} {name}" if amount < 10 else f"{amount:,.0f} {name}"
    return f"{size:.0f} bytes"
