"""Checkpoints of a training run: complete folders, the newest few, each with everything that going on needs."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from tasks.tables import write_table
from tasks.training.saved_groups import SAVED_GROUPS

KEEP = 2
STATE = {
    *(
        "version",
        "elapsed",
        "next_group",
        "prompts",
        "replays",
        "unrecorded",
        "validated",
        "rollout_files",
        "ledger_bytes",
        "journal_bytes",
    ),
    *("format", "code", "ranks", "zero_stage", "dtype"),
}
"""What `state.json` holds."""


class Writer(Protocol):
    """Whoever has a part in a checkpoint: the learner."""

    async def save(self, folder: Path) -> None:
        """Write everything that it needs to go on."""


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
        for partial in folder.glob("*.partial"):
            shutil.rmtree(partial)

    async def save(self, version: int, state: dict[str, Any], groups: pa.Table, learner: Writer) -> Path:
        """Write the learner and the controller's `state` and `groups`; returns the folder of the complete checkpoint.

        Older checkpoints beyond the newest few go.
        """
        final = self._folder / f"step_{version:08d}"
        partial = final.with_suffix(".partial")
        partial.mkdir(parents=True, exist_ok=True)
        await asyncio.to_thread(write_table, self.groups_in(partial), groups, SAVED_GROUPS)
        await learner.save(self.learner_in(partial))
        with (partial / "state.json").open("w") as file:
            json.dump(state, file)
            file.flush()
            os.fsync(file.fileno())
        await asyncio.to_thread(self._may_replace)
        if final.exists():
            shutil.rmtree(final)
        partial.rename(final)
        await asyncio.to_thread(self._on_saved, final)  # it may wait for an upload; sampling goes on
        for old in _complete(self._folder)[:-KEEP]:
            shutil.rmtree(old)
        return final

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

    @staticmethod
    def read_state(checkpoint: Path) -> dict[str, Any]:
        """The controller's state in a checkpoint.

        Raises:
            ValueError: the file is missing or malformed; nothing is resumed from half a checkpoint.
        """
        path = checkpoint / "state.json"
        try:
            state = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise ValueError(f"checkpoint {checkpoint}: state.json cannot be read: {error}") from None
        missing = STATE - set(state) if isinstance(state, dict) else STATE
        if missing:
            raise ValueError(f"checkpoint {checkpoint}: state.json cannot be read: it lacks {sorted(missing)}")
        return state


def _complete(folder: Path) -> list[Path]:
    return sorted(path for path in folder.glob("step_*") if path.suffix != ".partial")
