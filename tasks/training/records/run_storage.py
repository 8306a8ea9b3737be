"""A run's hold on its folder and, where it has one, on its address on blob storage, for as long as it trains."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tasks.storage.lease import Lease
from tasks.training.learner.checkpoint_shards import PartStorage
from tasks.training.records.remote_store import RunStore

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


@dataclass(frozen=True)
class Attached:
    """The lease, the upload and the address of a run that holds its folder, to be put into `RunInputs`."""

    lease: Lease
    """The right to work on the run."""
    on_saved: Callable[[Path], None] = lambda _: None
    """Called with the folder of each complete checkpoint, which it uploads."""
    parts: PartStorage | None = None
    """The run's address, to which learner ranks upload by themselves; None: the run is in its folder alone."""


@contextlib.contextmanager
def attached(
    folder: Path,
    address: str | None,
    filesystem_of: Callable[[str], AbstractFileSystem],
    every: int,
    begin: Callable[[RunStore | None], None] = lambda _: None,
) -> Iterator[Attached]:
    """Hold the lease of the run in `folder`, and synchronise the run with blob storage if it has an address there.

    Before the block the newest checkpoint is downloaded; after it, at the run's end, the last one is kept there.

    Args:
        folder: the run folder.
        address: of the run on blob storage; None: it is in its folder alone.
        filesystem_of: returns the fsspec file system of an address.
        every: `checkpoint_every`, the steps between two checkpoints that can be gone back to.
        begin: called with the run's address, if it has one, once the lease is held and before anything is downloaded
            (`shorter_runs`).

    Raises:
        AccessError: a run cannot be stored at this address, or with these credentials.
        StoreError: the storage does not answer.
        RunInUseError: another process works on it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    if address is None:
        with Lease.of_folder(folder) as lease:
            begin(None)
            yield Attached(lease)
        return
    with RunStore(filesystem_of(address), address, folder, every=every) as store:
        begin(store)
        store.restore()
        yield Attached(store.lease, store.save, store.parts)
        store.finish()
