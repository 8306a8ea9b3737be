"""The ledger: a JSON-lines file with a row for every sampled group, its actors, scores and fate.

A row is appended and flushed when the group's fate is decided. A checkpoint records the file's length; resuming cuts
the file back to it, because the steps after the checkpoint are lost and taken again.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tasks.failures import MistakeError
from tasks.storage.durable import whole
from tasks.tables.json_lines import read_json_lines
from tasks.tables.parquet import storable, table_from_rows
from tasks.tables.schemas import LEDGER, canonical_json
from tasks.training.groups.group import Group, JudgedGroup, describe_unjudged
from tasks.training.records.response_files import RolloutFiles

Fate = Literal["trained", "zero_variance", "stale", "failed", "unused", "replayed"]
"""The outcome of a group: trained on, dropped for one of three reasons, left over at the end of the run, or trained on
again."""


class Ledger:
    """Append-only record of groups: each has exactly one row with its fate.

    A group that is trained on again has one more row each time, of fate `replayed`, without scores and tokens.

    Args:
        path: the JSON-lines file.
        rollouts: receives the responses of each group whose fate is recorded.

    Attributes:
        fates: number of rows so far, by fate.
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
        """Record the fate of `group`: `trained` at `step`, or the reason why it was not.

        Responses that could not be judged come last in `scores` and `num_tokens`, with null as score; their number and
        the reasons are added to `detail`.

        Args:
            group: the group that leaves the run.
            fate: its outcome.
            step: the optimizer step that trained on it.
            spread: standard deviation of its advantages.
            detail: reason for the fate, in words.

        Raises:
            ValueError: the group already has a fate.
        """
        if group.number in self._closed:
            raise ValueError(f"group {group.number} already left the ledger; it cannot become {fate}")
        self._closed.add(group.number)
        self.fates[fate] += 1
        lengths = [completion.num_tokens for completion in group.completions]
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
            ValueError: the group has no fate yet, so that this is no replay.
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
        """Flush the rows to the disk and return the file's length in bytes, for a checkpoint."""
        self._file.flush()
        os.fsync(self._file.fileno())
        return self._file.tell()

    def table(self) -> pa.Table:
        """Return the ledger as a table of `schemas.LEDGER`, sorted by group number."""
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
    """Cut the append-only file `path` back to `length` bytes, which a checkpoint recorded.

    The result is a new file: an attempt that has lost the run without knowing it goes on appending to the old one.

    Raises:
        ValueError: the file is shorter than `length`, or absent where `length` is not 0.
    """
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise MistakeError(f"{path} holds {size} bytes, the checkpoint recorded {length}: the run folder was changed")
    if not size:
        return
    with whole(path, durable=True) as partial:
        shutil.copyfile(path, partial)
        os.truncate(partial, length)
