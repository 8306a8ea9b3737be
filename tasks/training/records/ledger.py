"""Writes the ledger, a JSON-lines file with a row for every sampled group: its actors, scores and outcome (`fate`).

A row is appended and flushed when the group's outcome is decided. A checkpoint records the file's length. Resuming
truncates the file to it, because the steps after the checkpoint are lost and repeated.
"""

from __future__ import annotations

import os
import shutil
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa

from tasks.failures import MistakeError
from tasks.storage.durable import write_whole
from tasks.tables.json_lines import read_json_lines
from tasks.tables.parquet import build_table, storable
from tasks.tables.schemas import LEDGER, canonical_json
from tasks.training.groups.group import Group, JudgedGroup, describe_unjudged
from tasks.training.records.kept_tokens import TrainedTokens
from tasks.training.records.response_files import RolloutFiles

Fate = Literal["trained", "zero_variance", "stale", "failed", "unused", "replayed"]
"""The outcome of a group: trained on, dropped for one of three reasons, unused at the end of the run, or trained on
again."""


class Ledger:
    """Append-only record of groups. Each group has exactly one row with its outcome.

    A group that is trained on again gets an additional row each time, with `fate` `replayed` and without scores and
    tokens.

    Args:
        path: the JSON-lines file.
        rollouts: receives the responses of each group whose outcome is recorded.

    Attributes:
        fates: number of rows so far, by outcome.
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
        tokens: Sequence[TrainedTokens] | None = None,
    ) -> None:
        """Record the outcome of `group`: `trained` at `step`, or the reason why it was not trained on.

        Responses that could not be scored come last in `scores` and `num_tokens`, with null as score. Their number and
        the reasons are added to `detail`.

        Args:
            group: the group that leaves the run.
            fate: its outcome.
            step: the optimizer step that trained on it.
            spread: standard deviation of its advantages.
            detail: reason for the outcome, in words.
            tokens: what the step had for the tokens of its scored responses, if they are kept.

        Raises:
            ValueError: the group already has an outcome.
        """
        if group.number in self._closed:
            raise ValueError(f"group {group.number} already left the ledger; it cannot become {fate}")
        self._closed.add(group.number)
        lengths = [completion.num_tokens for completion in group.completions]
        scores, unjudged = (group.scores, group.unjudged) if isinstance(group, JudgedGroup) else ([], ())
        left_out = describe_unjudged([sample.reason for sample in unjudged], len(lengths) + len(unjudged))
        self._write(
            group,
            fate,
            scores=[*scores, *(None for _ in unjudged)],
            num_tokens=[*lengths, *(sample.num_tokens for sample in unjudged)],
            advantage_spread=spread,
            step=step,
            detail=storable("; ".join(filter(None, (detail, left_out)))) or None,
        )
        self.rollouts.add(_get_sampled(group), fate, step, tokens)

    def add_replay(self, group: JudgedGroup, *, step: int, spread: float) -> None:
        """Record that `group`, which was trained on before, was trained on again at `step`.

        Raises:
            ValueError: the group has no outcome yet, so this is not a replay.
        """
        if group.number not in self._closed:
            raise ValueError(f"group {group.number} has not left the ledger; it cannot be replayed")
        detail = f"trained on again, time {group.replays}; scores and tokens are in its row of fate trained"
        self._write(group, "replayed", scores=[], num_tokens=[], advantage_spread=spread, step=step, detail=detail)

    def _write(self, group: Group | JudgedGroup, fate: Fate, **outcome: Any) -> None:
        self.fates[fate] += 1
        row = {**_make_identity(group), "fate": fate, **outcome}
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
        return build_table(rows, LEDGER, str(self.path))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _get_sampled(group: Group | JudgedGroup) -> Group:
    return group.sampled if isinstance(group, JudgedGroup) else group


def _make_identity(group: Group | JudgedGroup) -> dict[str, Any]:
    return {
        "group": group.number,
        "prompt_id": group.prompt.prompt_id,
        "domain": group.prompt.domain,
        "actors": _get_sampled(group).actors,
        "sampled_at": _get_sampled(group).sampled_at,
        "finished_at": group.finished_at if isinstance(group, JudgedGroup) else None,
        "first_version": group.first_version,
        "last_version": group.last_version,
    }


def cut_back(path: Path, length: int) -> None:
    """Truncate the append-only file `path` to `length` bytes, the length that a checkpoint recorded.

    The result is a new file, because an attempt that has lost the run without noticing still appends to the old file.

    Raises:
        ValueError: the file is shorter than `length`, or missing although `length` is not 0.
    """
    size = path.stat().st_size if path.exists() else 0
    if size < length:
        raise MistakeError(f"{path} holds {size} bytes, the checkpoint recorded {length}: the run folder was changed")
    if not size:
        return
    with write_whole(path, durable=True) as partial:
        shutil.copyfile(path, partial)
        os.truncate(partial, length)
