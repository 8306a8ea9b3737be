"""Checkpoints of a training run: complete folders, the newest few, each with everything that going on needs."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tasks.storage.durable import sync
from tasks.tables.parquet import write_table
from tasks.training.records.run_state import RunState
from tasks.training.records.saved_groups import SAVED_GROUPS

KEEP = 2
"""Complete checkpoints that stay in the run folder, and on blob storage."""


class Writer(Protocol):
    """Whoever has a part in a checkpoint: the learner."""

    async def save(self, folder: Path) -> None:
        """Begin to write everything that it needs to go on from here."""


class Checkpoints:
    """Folders `step_<version>` below one folder; a folder has its name only once it is complete.

    Args:
        folder: on storage that outlives the machines of the run.
        on_saved: called with the folder of each complete checkpoint, which stays until two newer ones are complete.
        may_replace: raises where this process must not delete what is there any more.
    """

    def __init__(
        self,
        folder: Path,
        on_saved: Callable[[Path], None] = lambda _: None,
        may_replace: Callable[[], None] = lambda: None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._on_saved = on_saved
        self._may_replace = may_replace
        self._clear()

    async def begin(self, state: RunState, groups: pa.Table, learner: Writer) -> Path:
        """Write the controller's `state` and `groups`, and let the learner begin with its part.

        Returns the folder, which is a checkpoint once the learner has written its part and `complete` has been called.
        """
        await asyncio.to_thread(self._may_replace)
        await asyncio.to_thread(self._clear)
        partial = self._folder / f"step_{state.version:08d}.partial"
        partial.mkdir(exist_ok=True)
        await asyncio.to_thread(write_table, self.groups_in(partial), groups, SAVED_GROUPS)
        await learner.save(self.learner_in(partial))
        state.write(partial)
        return partial

    async def complete(self, partial: Path) -> Path:
        """Give what is written whole its name, and return it; `settle` comes next."""
        final = partial.with_suffix("")
        await asyncio.to_thread(sync, partial)
        await asyncio.to_thread(self._may_replace)
        if final.exists():
            await asyncio.to_thread(shutil.rmtree, final)
        partial.rename(final)
        return final

    async def settle(self, checkpoint: Path) -> None:
        """Tell of a complete checkpoint, which may wait for an upload; older ones beyond the newest few go."""
        await asyncio.to_thread(self._on_saved, checkpoint)
        for old in _complete(self._folder)[:-KEEP]:
            await asyncio.to_thread(shutil.rmtree, old)

    def _clear(self) -> None:
        """Remove what was never completed."""
        for partial in self._folder.glob("*.partial"):
            shutil.rmtree(partial, ignore_errors=True)  # a rank that is about to be replaced may still write there

    @staticmethod
    def learner_in(checkpoint: Path) -> Path:
        """The folder of what its learner wrote."""
        return checkpoint / "learner"

    @staticmethod
    def groups_in(checkpoint: Path) -> Path:
        """The file of its groups."""
        return checkpoint / "groups.parquet"

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        return self.newest_in(self._folder)

    @staticmethod
    def newest_in(folder: Path) -> Path | None:
        """The newest complete checkpoint in a folder that another run may be writing to: nothing is touched."""
        complete = _complete(folder)
        return complete[-1] if complete else None


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.suffix != ".partial")
