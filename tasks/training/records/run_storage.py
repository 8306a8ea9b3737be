"""Locks a run's folder and, if it has one, its address on blob storage for the duration of training."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.storage.lease import Lease
from tasks.storage.uploads import Uploads
from tasks.training.records.remote_store import RunStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


@dataclass(frozen=True)
class Attached:
    """The lease, the upload and the address of a run that has locked its folder, for `RunInputs`."""

    lease: Lease
    """The right to work on the run."""
    on_saved: Callable[[Path], None] = lambda _: None
    """Called with the folder of each complete checkpoint, to upload it."""
    uploads: Uploads | None = None
    """The run's address, to which learner ranks upload directly, or None if the run only has a folder."""


@contextlib.contextmanager
def open_run_storage(
    folder: Path,
    address: str | None,
    filesystem_of: Callable[[str], AbstractFileSystem],
    every: int,
    begin: Callable[[RunStore | None], None] = lambda _: None,
) -> Iterator[Attached]:
    """Acquire the lease of the run in `folder`, and synchronise the run with blob storage if it has an address there.

    Before the block the newest checkpoint is downloaded. After the block, if the run has ended, the last one is kept
    there.

    Args:
        folder: the run folder.
        address: address of the run on blob storage. Optional. If None, the run only has a folder.
        filesystem_of: returns the fsspec file system of an address.
        every: `checkpoint_every`, the number of steps between checkpoints that are kept to return to.
        begin: called with the run's storage, if it has an address, after the lease is acquired and before anything is
            downloaded (`shorter_runs`).

    Raises:
        AccessError: a run cannot be stored at this address, or with these credentials.
        StoreError: the storage does not answer.
        RunInUseError: another process works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if address is None:
        with Lease.from_folder(folder) as lease:
            begin(None)
            yield Attached(lease)
        return
    with RunStore(filesystem_of(address), address, folder, every=every) as store:
        begin(store)
        store.restore()
        yield Attached(store.lease, store.save, store.uploads)
        store.finish()
