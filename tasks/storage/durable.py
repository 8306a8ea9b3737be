"""Files that are on the disk, and not in a machine's memory alone."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

from tasks.failures import InfrastructureError

PARTIAL = ".partial"
"""Suffix of a file or folder that is being written."""


class WriteError(InfrastructureError):
    """A file could not be written, as its disk is full or failed; the message has the room that is left there."""


@contextlib.contextmanager
def writing(path: Path) -> Iterator[None]:
    """For a block that has torch or safetensors write `path`, a file or a folder: they hide the system's errors.

    Raises:
        WriteError: in the place of theirs.
    """
    from safetensors import SafetensorError

    try:
        yield
    except (RuntimeError, SafetensorError) as error:
        there = next(folder for folder in path.absolute().parents if folder.exists())
        free = shutil.disk_usage(there).free
        raise WriteError(f"{path} could not be written: {error}; {free / 2**30:.1f} GiB are free there") from error


def sync(path: Path) -> None:
    """Return when the file `path`, or the folder with all that is below it, is on the disk."""
    for item in (path, *path.rglob("*")):
        _sync_one(item)


@contextlib.contextmanager
def whole(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Write a file or a folder whole or not at all: yields the path to write, which becomes `path` at the end.

    What an earlier attempt left of either is removed first; a reader of `path` sees the old content or the new. A
    block that raises leaves `path` as it was, and what it wrote beside it under the suffix `.partial`.

    Args:
        path: the file or folder; its parent exists.
        durable: flush it to the disk before it gets its name, and the name after.
    """
    partial = _partial_of(path)
    _remove(partial)
    yield partial
    _put_in_place(partial, path, durable=durable)


@contextlib.asynccontextmanager
async def whole_in_threads(path: Path, *, durable: bool = False) -> AsyncIterator[Path]:
    """Write a file or a folder whole or not at all, as `whole` does, in an async block.

    Storage is touched in threads, so that the event loop goes on where it is slow.
    """
    partial = _partial_of(path)
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
