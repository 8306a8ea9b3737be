"""The training run's memory: every sampled group, by whom it was sampled, and its one fate.

The ledger is a JSON-lines file to which a row is appended and flushed when a group's fate is decided. A checkpoint
remembers the file's length; resuming cuts it back to that, because a step that was lost trained nothing.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tasks.storage.durable import whole
from tasks.tables.json_lines import read_json_lines
from tasks.tables.parquet import storable, table_from_rows
from tasks.tables.schemas import LEDGER, canonical_json
from tasks.training.groups.group import Group, JudgedGroup, describe_unjudged
from tasks.training.records.response_files import RolloutFiles

Fate = Literal["trained", "zero_variance", "stale", "failed", "unused", "replayed"]


class Ledger:
    """Append-only record of groups. A group that enters leaves exactly once.

    One that is trained on again has a row for that too, of fate `replayed`, which repeats neither scores nor tokens.

    Args:
        path: of the JSON-lines file.
        rollouts: takes the responses of every group that leaves.
    """

    def __init__(self, path: Path, rollouts: RolloutFiles | None = None) -> None:
        self.path = path
        self.rollouts = rollouts or RolloutFiles(path.parent / "rollouts", keep=False)
        self._file = path.open("ab")
        earlier = read_json_lines(path)
        self._closed: set[int] = {row["group"] for row in earlier}
        self.fates: Counter[str] = Counter(row["fate"] for row in earlier)

    def close_group(
        self,
        group: Group | JudgedGroup,
        fate: Fate,
        *,
        step: int | None = None,
        spread: float | None = None,
        detail: str | None = None,
    ) -> None:
        """Record what became of `group`: `trained` at `step`, or why not.

        Responses that could not be judged come last in `scores` and `num_tokens`, with a null for a score; `detail`
        says how many they are, and why.

        Raises:
            ValueError: the group already has a fate.
        """
        if group.number in self._closed:
            raise ValueError(f"group {group.number} already left the ledger; it cannot become {fate}")
        self._closed.add(group.number)
        self.fates[fate] += 1
        lengths = [len(completion.token_ids) for completion in group.completions]
        scores, unjudged = (group.scores, group.unjudged) if isinstance(group, JudgedGroup) else ([], ())
        left_out = describe_unjudged([sample.reason for sample in unjudged], len(lengths) + len(unjudged))
        row = {
            **_identity(group),
            "scores": [*scores, *(None for _ in unjudged)],
            "num_tokens": [*lengths, *(sample.num_tokens for sample in unjudged)],
            "advantage_spread": spread,
            "fate": fate,
            "step": step,
            "detail": storable("; ".join(filter(None, (detail, left_out)))) or None,
        }
        self._write(row)
        self.rollouts.add(_sampled(group), fate, step)

    def add_replay(self, group: JudgedGroup, *, step: int, spread: float) -> None:
        """Record that `group`, which was trained on before, was trained on again at `step`.

        Raises:
            ValueError: the group has no fate yet: it is no replay.
        """
        if group.number not in self._closed:
            raise ValueError(f"group {group.number} has not left the ledger; it cannot be replayed")
        self.fates["replayed"] += 1
        self._write(
            {
                **_identity(group),
                "scores": [],
                "num_tokens": [],
                "advantage_spread": spread,
                "fate": "replayed",
                "step": step,
                "detail": f"trained on again, time {group.replays}; scores and tokens are in its row of fate trained",
            }
        )

    def _write(self, row: dict[str, Any]) -> None:
        self._file.write(canonical_json(row).encode() + b"\n")
        self._file.flush()

    def sync(self) -> int:
        """Force the rows to disk and return the file's length in bytes, for a checkpoint."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def table(self) -> pa.Table:
        """The ledger as a table of `schemas.LEDGER`, by group number."""
        rows = sorted(read_json_lines(self.path), key=lambda row: row["group"])
        return table_from_rows(rows, LEDGER, str(self.path))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _sampled(group: Group | JudgedGroup) -> Group:
    return group.sampled if isinstance(group, JudgedGroup) else group


def _identity(group: Group | JudgedGroup) -> dict[str, Any]:
    return {
        "group": group.number,
        "prompt_id": group.prompt.prompt_id,
        "domain": group.prompt.domain,
        "actors": _sampled(group).actors,
        "sampled_at": _sampled(group).sampled_at,
        "finished_at": group.finished_at if isinstance(group, JudgedGroup) else None,
        "first_version": group.first_version,
        "last_version": group.last_version,
    }


def cut_back(path: Path, length: int) -> None:
    """Shorten an append-only file to what a checkpoint knew of; an absent file that should have content is an error.

    It becomes a file of its own, so that an attempt that has lost the run unseen goes on to append to the old one.

    Raises:
        ValueError: the file is shorter than the checkpoint says.
    """
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise ValueError(f"{path} holds {size} bytes, the checkpoint knew {length}: the run folder was changed")
    if not size:
        return
    with whole(path, durable=True) as partial:
        shutil.copyfile(path, partial)
        os.truncate(partial, length)
