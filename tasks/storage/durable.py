"""Writes files and folders atomically, and optionally flushes them to the disk."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tasks.failures import InfrastructureError, one_line

PARTIAL = ".partial"
"""Suffix of a file or folder that is being written."""


FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
"""Error numbers for a full disk or a used-up quota."""


class WriteError(InfrastructureError):
    """A file could not be written because its disk is full or failed. The message has the free space."""


@contextlib.contextmanager
def convert_write_errors(path: Path) -> Iterator[None]:
    """Convert errors of torch or safetensors, which write `path` in the block, to errors with the free disk space.

    The errors of both libraries hide the error of the system.

    Raises:
        WriteError: instead of the library's error.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        raise _make_write_error(path, error) from error


def _make_write_error(path: Path, error: Exception) -> WriteError:
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    return WriteError(f"{path} could not be written: {one_line(error)}; {free / 2**30:.1f} GiB are free there")


@contextlib.contextmanager
def _add_path(path: Path) -> Iterator[None]:
    """Add the path to the error of a full disk, which does not contain it."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _make_write_error(path, error) from error


def sync(path: Path) -> None:
    """Flush the file `path`, or the folder and everything in it, to the disk."""
    for item in (path, *path.rglob("*")):
        _sync_one(item)


@contextlib.contextmanager
def write_whole(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write a file or a folder atomically: yield a temporary path, which is renamed to `path` at the end of the block.

    A reader of `path` sees the old or the new content (for a folder, neither for a short time). If the block raises,
    `path` is unchanged, and the unfinished file or folder next to it with the suffix `.partial` is removed by the next
    attempt.

    Args:
        path: the file or folder. Its parent must exist.
        durable: flush the content to the disk before the renaming, and the parent folder after it.

    Raises:
        WriteError: the disk is full.
    """
    partial = _make_partial_path(path)
    with _add_path(path):
        remove(partial)
        yield partial
        _put_in_place(partial, path, durable=durable)


@contextlib.asynccontextmanager
async def write_whole_in_threads(path: Path) -> AsyncIterator[Path]:
    """Write a file or a folder atomically in an async block, as `write_whole` does.

    Storage is accessed in threads, so that slow storage does not block the event loop.
    """
    partial = _make_partial_path(path)
    with _add_path(path):
        await asyncio.to_thread(remove, partial)
        yield partial
        await asyncio.to_thread(_put_in_place, partial, path, durable=False)


def _make_partial_path(path: Path) -> Path:
    return path.with_name(f"{path.name}{PARTIAL}")


def _put_in_place(partial: Path, path: Path, *, durable: bool) -> None:
    if durable:
        sync(partial)
    if partial.is_dir():
        remove(path)  # only a file can replace another in one step
    os.replace(partial, path)
    if durable:
        _sync_one(path.parent)


def remove(path: Path) -> None:
    """Remove a file, which may not exist, or a folder."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _sync_one(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
