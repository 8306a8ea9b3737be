"""Every finished response of a run, with what became of it: Parquet files beside the ledger.

    rollouts/00000000.parquet, 00000001.parquet, ...   one a checkpoint, or more where a checkpoint is far away

A group's responses are written when its fate is decided, as the ledger's row is, so that both hold the same groups. A
checkpoint remembers how many files there are; resuming removes those beyond.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.storage.durable import whole
from tasks.tables.parquet import storable, table_from_rows, write_table
from tasks.training.groups.group import Group, JudgedGroup, Sample

TRAINING_ROLLOUTS = pa.schema(
    [
        pa.field("group", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("response", pa.large_string(), nullable=False),
        pa.field("num_tokens", pa.int32(), nullable=False),
        pa.field("finish_reason", pa.string(), nullable=False),
        pa.field("actor", pa.int32(), nullable=False),
        pa.field("first_version", pa.int64(), nullable=False),
        pa.field("last_version", pa.int64(), nullable=False),
        pa.field("score", pa.float64()),
        pa.field("passed", pa.bool_()),
        pa.field("rewards", pa.map_(pa.string(), pa.float64()), nullable=False),
        pa.field("detail", pa.string()),
        pa.field("fate", pa.string(), nullable=False),
        pa.field("step", pa.int64()),
    ]
)
"""One finished response a row; `fate` and `step` are the group's in the ledger.

`score` is the verifier's, before shaping; null where it could not be judged, and why is in `detail`. `rewards` holds
its parts by name, before their weights.
"""

FLUSH_BYTES = 256 << 20
"""Of responses that wait in memory: with more, a file is written before the next checkpoint."""


class RolloutFiles:
    """Collects responses, and writes them in files that are never changed.

    Args:
        folder: `rollouts` of the run folder.
        files: how many a checkpoint knew of; those beyond are removed.
        keep: without, nothing is written.
        may_write: raises where another attempt has taken the run over, whose files have the same names.
    """

    def __init__(
        self, folder: Path, files: int = 0, *, keep: bool = True, may_write: Callable[[], None] = lambda: None
    ) -> None:
        self._folder = folder
        self._may_write = may_write
        self._keep = keep
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self.files = files
        for path in folder.glob("*.parquet"):
            if not path.stem.isdecimal() or int(path.stem) >= files:
                path.unlink()

    def add(self, group: Group, fate: str, step: int | None) -> None:
        """The finished responses of a group that leaves."""
        if self._keep:
            rows = [_row(group, sample, fate, step) for sample in group.samples if sample.completion]
            self._rows += rows
            self._bytes += sum(len(row["response"]) for row in rows)

    @property
    def is_due(self) -> bool:
        """Whether so much waits that it should be written now."""
        return self._bytes >= FLUSH_BYTES

    async def flush(self) -> int:
        """Write what waits; returns how many files there are, for a checkpoint."""
        if self._rows:
            await asyncio.to_thread(self._may_write)
            rows, self._rows, self._bytes = self._rows, [], 0
            await asyncio.to_thread(_write, self._folder / f"{self.files:08d}.parquet", rows)
            self.files += 1
        return self.files


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with whole(path) as partial:
        write_table(partial, table_from_rows(rows, TRAINING_ROLLOUTS, str(path)), TRAINING_ROLLOUTS)


def _row(group: Group, sample: Sample, fate: str, step: int | None) -> dict[str, Any]:
    completion, score = sample.completion, sample.score
    assert completion is not None
    versions = [span.version for span in completion.versions] or [group.policy_version]
    judged = score if score and score.error is None else None
    return {
        "group": group.number,
        "sample": sample.index,
        "prompt_id": group.prompt.prompt_id,
        "response": storable(completion.text),
        "num_tokens": len(completion.token_ids),
        "finish_reason": completion.finish_reason,
        "actor": sample.actor,
        "first_version": min(versions),
        "last_version": max(versions),
        "score": judged.reward if judged else None,
        "passed": judged.passed if judged else None,
        "rewards": [(part.name, part.value) for part in judged.rewards] if judged else [],
        "detail": storable(score.error or score.detail) or None if score else None,
        "fate": fate,
        "step": step,
    }


def print_responses(groups: Iterable[JudgedGroup], step: int, count: int, chars: int = 400) -> None:
    """Print a response of each of the first `count` groups of a batch to standard error, above a progress bar."""
    for group in list(groups)[:count]:
        completion, score = group.samples[0].completion, group.samples[0].score
        print(
            f"── step {step} ── {group.prompt.domain} {group.prompt.prompt_id[:8]} ── reward {score:.2f} ── "
            f"{len(completion.token_ids)} tokens\n"
            f"{_shown(group.prompt.messages[-1]['content'], chars)}\n"
            f"▸ {_shown(completion.text, chars)}",
            file=sys.stderr,
            flush=True,
        )


def _shown(text: str, chars: int) -> str:
    """Beginning and end of a text, without what would move a terminal's cursor."""
    text = "".join(c for c in text.strip() if c == "\n" or c.isprintable())
    return text if len(text) <= chars else f"{text[: chars // 2]} […] {text[-chars // 2 :]}"
