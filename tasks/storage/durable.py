"""Files and folders that are written whole or not at all, and flushed to the disk where that is asked for."""

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
"""Error numbers of a disk, or of a user's part of it, that is full."""


class WriteError(InfrastructureError):
    """A file could not be written, as its disk is full or failed; the message names the free space."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """Report an error of torch or safetensors, which write `path` in the block, with the free space of its disk.

    Both raise errors of their own that hide the system's.

    Raises:
        WriteError: instead of theirs.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        raise _not_written(path, error) from error


def _not_written(path: Path, error: Exception) -> WriteError:
    existing = next(folder for folder in path.absolute().parents if folder.exists())
    free = shutil.disk_usage(existing).free
    return WriteError(f"{path} could not be written: {one_line(error)}; {free / 2**30:.1f} GiB are free there")


@contextlib.contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Name the path in the error of a full disk, which has none of its own."""
    try:
        yield
    except OSError as error:
        if error.errno not in FULL:
            raise
        raise _not_written(path, error) from error


def sync(path: Path) -> None:
    """Flush the file `path`, or the folder with everything below it, to the disk."""
    for item in (path, *path.rglob("*")):
        _sync_one(item)


@contextlib.contextmanager
def whole(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write a file or a folder whole or not at all: yields a path to write to, which is renamed to `path` at the end.

    A reader of `path` sees the old content or the new (of a folder, for a moment, neither). A block that raises leaves
    `path` as it was, and its own unfinished writing beside it under the suffix `.partial`, which the next attempt
    removes.

    Args:
        path: the file or folder; its parent exists.
        durable: flush the content to the disk before the renaming, and the folder that holds the name after it.

    Raises:
        WriteError: the disk is full.
    """
    partial = _partial_of(path)
    with _naming(path):
        _remove(partial)
        yield partial
        _put_in_place(partial, path, durable=durable)


@contextlib.asynccontextmanager
async def whole_in_threads(path: Path, *, durable: bool = False) -> AsyncIterator[Path]:
    """Write a file or a folder whole or not at all, as `whole` does, in an async block.

    Storage is touched in threads, so that the event loop goes on where it is slow.
    """
    partial = _partial_of(path)
    with _naming(path):
        await asyncio.to_thread(_remove, partial)
        yield partial
        await asyncio.to_thread(_put_in_place, partial, path, durable=durable)


def _partial_of(path: Path) -> Path:
    return path.with_name(f"{path.name}{PARTIAL}")


def _put_in_place(partial: Path, path: Path, *, durable: bool) -> None:
    if durable:
        sync(partial)
    if partial.is_dir():
        _remove(path)  # only a file replaces another in one step
    os.replace(partial, path)
    if durable:
        _sync_one(path.parent)


def _remove(path: Path) -> None:
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
