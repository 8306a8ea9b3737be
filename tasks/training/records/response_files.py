"""Writes every finished response of a run, its rewards, and the outcome of its group to Parquet files.

    rollouts/00000000.parquet, 00000001.parquet, ...   one for each checkpoint, and more between distant checkpoints

A group's responses are collected when its row in the ledger is written, so both contain the same groups. A checkpoint
records the number of files. Resuming removes later files.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.excerpts.episodes import TERMINAL_CHARS, TERMINAL_TURNS, ShownEpisode
from tasks.excerpts.texts import make_printable
from tasks.generation.episode_turns import make_turn_rows
from tasks.generation.interface import Completion
from tasks.rollouts.episodes import episode_columns
from tasks.storage.durable import write_whole
from tasks.tables.parquet import build_table, storable, write_table
from tasks.tables.schemas import EPISODE_TURNS
from tasks.training.groups.group import Group, JudgedGroup, Sample
from tasks.training.records.kept_tokens import TOKEN_COLUMNS, TrainedTokens, is_kept, make_token_columns
from tasks.training.records.routes import ROUTES, encode_routes

TRAINING_ROLLOUTS = pa.schema(
    [
        pa.field("group", pa.int64(), nullable=False),
        pa.field("sample", pa.int32(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("response", pa.large_string(), nullable=False),
        pa.field("turns", EPISODE_TURNS, nullable=False),
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
        *TOKEN_COLUMNS,
        pa.field("routes", ROUTES),
    ]
)
"""Schema of the files: one row per finished response, with `fate` and `step` of its group as in the ledger.

For an episode, `response` is the last turn, and `turns` contains all turns (`make_turn_rows`). For a single response
`turns` is empty. `score` is the verifier's score before shaping, or null if the response could not be scored. Then
`detail` has the reason. `rewards` contains the components of the score by name, before their weights. The last columns
are null for groups whose tokens are not kept (`TOKEN_COLUMNS`), and `routes` also without `routing_replay`.
"""

FLUSH_BYTES = 256 << 20
"""Bytes of responses in memory above which a file is written before the next checkpoint."""
EXCERPT_CHARS = 400
"""Characters of a response that are printed: its beginning and its end."""
TOKEN_BYTES = 36
"""Bytes in memory per token of an episode's turn: a Python number, and its reference in a list."""


class RolloutFiles:
    """The folder `rollouts/` of a run. Responses are collected in memory, and written to files that never change.

    Args:
        folder: folder `rollouts` of the run folder.
        files: number of files that the checkpoint recorded. Later files are removed.
        keep: if False, nothing is written.
        keep_tokens: share of the groups whose tokens are written (`is_kept`).
        may_write: called before a file is written. It raises if another attempt has taken over the run, because that
            attempt writes files with the same names.

    Attributes:
        files: number of files written.
    """

    def __init__(
        self,
        folder: Path,
        files: int = 0,
        *,
        keep: bool = True,
        keep_tokens: float = 0,
        may_write: Callable[[], None] = lambda: None,
    ) -> None:
        self._folder = folder
        self._may_write = may_write
        self._keep = keep
        self._keep_tokens = keep_tokens
        self._rows: list[dict[str, Any]] = []
        self._bytes = 0
        self.files = files
        for path in folder.glob("*.parquet"):
            if not path.stem.isdecimal() or int(path.stem) >= files:
                path.unlink()

    def add(self, group: Group, fate: str, step: int | None, tokens: Sequence[TrainedTokens] | None = None) -> None:
        """Collect the finished responses of `group`, whose outcome is decided.

        `tokens` are from its scored responses, in their order, if a step was taken on them and they are kept.
        """
        if not self._keep:
            return
        scored = [sample.index for sample in group.samples if sample.score and sample.score.error is None]
        trained = dict(zip(scored, tokens, strict=True)) if tokens else {}
        has_tokens = is_kept(group.number, self._keep_tokens)
        for sample in group.samples:
            if sample.completion:
                row = _make_row(group, sample, fate, step)
                if has_tokens:
                    row |= make_token_columns(sample.completion, trained.get(sample.index))
                    row["routes"] = encode_routes(sample.completion.routes)
                self._rows.append(row)
                self._bytes += _estimate_size(row)

    @property
    def is_due(self) -> bool:
        """Return whether the responses in memory should be written before the next checkpoint."""
        return self._bytes >= FLUSH_BYTES

    async def flush(self) -> int:
        """Write the responses in memory to a file, if any. Return the number of files, for a checkpoint."""
        if self._rows:
            await asyncio.to_thread(self._may_write)
            rows, self._rows, self._bytes = self._rows, [], 0
            await asyncio.to_thread(_write, self._folder / f"{self.files:08d}.parquet", rows)
            self.files += 1
        return self.files


def _estimate_size(row: dict[str, Any]) -> int:
    """Return an estimate of the bytes that a row takes in memory."""
    turns = sum(len(turn["content"]) + TOKEN_BYTES * len(turn["token_ids"]) for turn in row["turns"])
    arrays = [value for value in row.values() if isinstance(value, np.ndarray)]
    routes = len(row["routes"]["experts"]) if row.get("routes") else 0
    return len(row["response"]) + turns + routes + sum(array.nbytes for array in arrays)


def _write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with write_whole(path) as partial:
        write_table(partial, build_table(rows, TRAINING_ROLLOUTS, str(path)), TRAINING_ROLLOUTS)


def _make_row(group: Group, sample: Sample, fate: str, step: int | None) -> dict[str, Any]:
    completion, score = sample.completion, sample.score
    assert completion is not None
    versions = [span.version for span in completion.versions] or [group.policy_version]
    judged = score if score and score.error is None else None
    return {
        "group": group.number,
        "sample": sample.index,
        "prompt_id": group.prompt.prompt_id,
        "response": storable(completion.text),
        "turns": make_turn_rows(completion),
        "num_tokens": completion.num_tokens,
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


def print_responses(groups: Iterable[JudgedGroup], step: int, count: int) -> None:
    """Print a response or episode from each of the first `count` groups of a batch to stderr, above a progress bar."""
    for group in list(groups)[:count]:
        completion, score = group.samples[0].completion, group.samples[0].score
        print(
            f"── step {step} ── {group.prompt.domain} {group.prompt.prompt_id[:8]} ── reward {score:.2f} ── "
            f"{completion.num_tokens} tokens\n"
            f"{_format_excerpt(group.prompt.messages[-1]['content'])}\n"
            f"{_format_response(completion)}",
            file=sys.stderr,
            flush=True,
        )


def _format_response(completion: Completion) -> str:
    row = {**episode_columns(completion), "finish_reason": completion.finish_reason}
    if episode := ShownEpisode.from_row(row, TERMINAL_TURNS, TERMINAL_CHARS):
        return "\n".join(episode.lines())
    return f"▸ {_format_excerpt(completion.text)}"


def _format_excerpt(text: str) -> str:
    """Return the beginning and the end of a text, without characters that move a terminal's cursor."""
    text = make_printable(text.strip())
    half = EXCERPT_CHARS // 2
    return text if len(text) <= EXCERPT_CHARS else f"{text[:half]} […] {text[-half:]}"
