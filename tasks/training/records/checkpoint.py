"""Writes the checkpoints of a training run, and keeps the newest complete ones. Each has everything to resume the run.

Only the last checkpoint of a finished run is kept.

    checkpoints/step_00000004/state.json       counters and options of the run (`run_state.RunState`)
                              groups.parquet   the groups in the window (`saved_groups`)
                              learner/         weights, optimizer and scheduler, written by the learner ranks
                step_00000006.partial/         being written, while training continues

The ledger, the metrics and the responses are in the parent folder of `checkpoints/`, and a checkpoint records their
lengths.
"""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Protocol

import pyarrow as pa

from tasks.recipe.run import TrainingConfig
from tasks.storage.durable import PARTIAL, sync
from tasks.storage.uploads import parse_version
from tasks.tables.parquet import write_table
from tasks.training.learner.checkpoint_shards import KEEP
from tasks.training.records.run_state import RunState
from tasks.training.records.saved_groups import SAVED_GROUPS


def is_due(config: TrainingConfig, version: int, newest: int) -> bool:
    """Return whether a checkpoint is taken at a version, by `checkpoint_every` and `recover_every`.

    Args:
        config: the run's options.
        version: number of steps taken.
        newest: version of the newest checkpoint that was begun, or 0 if there is none.
    """
    recover = config.recover_every
    return version % config.checkpoint_every == 0 or (recover is not None and version - newest >= recover)


class Writer(Protocol):
    """The interface of the learner that a checkpoint needs."""

    async def save(self, folder: Path) -> None:
        """Begin to write everything into `folder` that resuming the learner needs."""


class Checkpoints:
    """The folders `step_<version>` of one run. A folder gets that name only when it is complete.

    A checkpoint is written in three calls: `begin`, then `complete` once the learner has written its files, and
    `settle`.

    Args:
        folder: the folder that contains them, on storage that outlives the machines of the run.
        on_saved: called with the folder of each complete checkpoint, which is kept until two newer ones are complete.
        may_replace: called before anything is deleted. It raises if another attempt has taken over the run.
        every: in addition to the newest two, the newest checkpoint whose version is a multiple of this is kept.
    """

    def __init__(
        self,
        folder: Path,
        on_saved: Callable[[Path], None] = lambda _: None,
        may_replace: Callable[[], None] = lambda: None,
        every: int = 1,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._on_saved = on_saved
        self._may_replace = may_replace
        self._every = every
        self._remove_incomplete()

    async def begin(self, state: RunState, groups: pa.Table, learner: Writer) -> Path:
        """Write the controller's `state` and `groups`, let the learner begin to write, and return the folder.

        It is a checkpoint once the learner has written its files and `complete` has been called.
        """
        await asyncio.to_thread(self._may_replace)
        await asyncio.to_thread(self._remove_incomplete)
        # Not `durable.whole`, because the learner still writes after this call, and `complete` is called much later.
        partial = self._folder / f"step_{state.version:08d}{PARTIAL}"
        partial.mkdir(exist_ok=True)
        await asyncio.to_thread(write_table, self.find_groups_file(partial), groups, SAVED_GROUPS)
        await learner.save(self.find_learner_folder(partial))
        state.write(partial)
        return partial

    async def complete(self, partial: Path) -> Path:
        """Flush the completely written folder `partial` to the disk, rename it, and return it."""
        final = partial.with_suffix("")
        await asyncio.to_thread(sync, partial)
        await asyncio.to_thread(self._may_replace)
        if final.exists():
            await asyncio.to_thread(shutil.rmtree, final)
        partial.rename(final)
        return final

    async def settle(self, checkpoint: Path, superseded: Iterable[Path] = ()) -> None:
        """Call `on_saved`, which may wait for an upload, and delete the older complete checkpoints.

        The newest `KEEP` are kept, and the newest of `every` steps.

        Args:
            checkpoint: the newest checkpoint.
            superseded: folders of policies that it does not need. They are deleted unless another checkpoint needs
                them.
        """
        await asyncio.to_thread(self._on_saved, checkpoint)
        complete = _list_complete(self._folder)
        names = retained([path.name for path in complete], self._every)
        for old in complete:
            if old.name not in names:
                await asyncio.to_thread(_delete, old)
        await self._delete_unneeded(superseded)

    async def keep_last(self, policies: Path) -> None:
        """Delete all complete checkpoints of a finished run except the last, and the policies that only they need.

        Args:
            policies: the folder of all policies of the run.
        """
        older = _list_complete(self._folder)[:-1]
        superseded = {policies / name for path in older for name in RunState.read(path).policies}
        await asyncio.to_thread(self._may_replace)
        for old in older:
            await asyncio.to_thread(_delete, old)
        await self._delete_unneeded(superseded)

    async def _delete_unneeded(self, superseded: Iterable[Path]) -> None:
        """Delete the policies among `superseded` that no complete checkpoint needs."""
        needed = {name for path in _list_complete(self._folder) for name in RunState.read(path).policies}
        for policy in superseded:
            if policy.name not in needed:
                await asyncio.to_thread(shutil.rmtree, policy)

    def _remove_incomplete(self) -> None:
        """Remove checkpoints that were never completed."""
        for partial in self._folder.glob(f"*{PARTIAL}"):
            shutil.rmtree(partial, ignore_errors=True)  # a rank that is being replaced may still write there

    @staticmethod
    def find_learner_folder(checkpoint: Path) -> Path:
        """Return the folder of the learner's files in `checkpoint`."""
        return checkpoint / "learner"

    @staticmethod
    def find_groups_file(checkpoint: Path) -> Path:
        """Return the file with the groups of `checkpoint`."""
        return checkpoint / "groups.parquet"

    def find_newest(self) -> Path | None:
        """Return the newest complete checkpoint, or None if there is none."""
        return self.find_newest_below(self._folder)

    @staticmethod
    def find_newest_below(folder: Path) -> Path | None:
        """Return the newest complete checkpoint in `folder`, which another process may be writing to."""
        complete = _list_complete(folder)
        return complete[-1] if complete else None


def retained(names: Sequence[str], every: int) -> list[str]:
    """Return which complete checkpoints are kept: the newest `KEEP`, and before them the newest of `every` steps.

    Args:
        names: names of checkpoints or of their uploads, oldest first.
        every: number of steps.
    """
    of_every = [name for name in names if parse_version(name) % every == 0]
    return [*of_every[-1:], *names[-KEEP:]]


def _delete(checkpoint: Path) -> None:
    """Delete a checkpoint.

    It is renamed first, because a shorter run may be copying it, and must not take it for complete with files missing.
    """
    doomed = checkpoint.with_suffix(PARTIAL)
    checkpoint.rename(doomed)
    shutil.rmtree(doomed)


def _list_complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.suffix != PARTIAL)
