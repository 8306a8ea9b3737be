"""Traces one prompt through a run: its source, and its results in every stage, in training and in evaluation.

The history is read from the tables of a run's folder (`outputs/<run>`). `docs/tracing.md` has the equivalent query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.excerpts.episodes import TERMINAL_CHARS, TERMINAL_TURNS, ShownEpisode
from tasks.failures import MistakeError
from tasks.tables.schemas import HELDOUT

PROMPT_CHARS = 300
"""Maximum number of characters of a prompt that a trace prints."""


class TraceError(MistakeError):
    """Raised if a prompt or a run cannot be found, or if several prompts match."""


@dataclass
class History:
    """The rows of a run's tables about one prompt.

    Attributes:
        prompt: its row in `PROMPTS`, or None for a row that did not become a prompt.
        set_aside: rows in `SET_ASIDE` of this prompt, and of rows dropped in its favour.
        graded: its row in `GRADED`.
        selected, mixed, held_out: whether it passed the difficulty filter, is in the mixture, is held out.
        rollouts: scores of the initial checkpoint.
        groups: its rows in `LEDGER`, by number.
        evaluated: scores by policy, and by benchmark if it is not the held-out split: `after`, `after on gsm8k`.
        episodes: if rollouts are episodes, the first episode of the initial checkpoint and of each entry of
            `evaluated`, with its sample number and its score.
    """

    prompt: dict[str, Any] | None
    set_aside: list[dict[str, Any]] = field(default_factory=list)
    graded: dict[str, Any] | None = None
    selected: bool = False
    mixed: bool = False
    held_out: bool = False
    rollouts: list[float | None] = field(default_factory=list)
    groups: list[dict[str, Any]] = field(default_factory=list)
    evaluated: dict[str, list[float | None]] = field(default_factory=dict)
    episodes: dict[str, tuple[ShownEpisode, int, float | None]] = field(default_factory=dict)


def find(run: Path, prompt_id: str) -> History:
    """Find the history of the prompt whose id begins with `prompt_id`.

    Raises:
        TraceError: the folder is not a run, or no prompt or several prompts match.
    """
    if not (run / "prompts.parquet").is_file():
        raise TraceError(f"{run} contains no prompts.parquet: --run names a folder such as outputs/latest")
    if len(prompt_id) < 4:
        raise TraceError(f"{prompt_id!r}: give at least four digits of a prompt's id")
    known = {known for name in ("prompts", "set_aside") for known in _ids(run, name) if known.startswith(prompt_id)}
    if len(known) != 1:
        matches = f"{len(known)} prompts: {', '.join(sorted(known)[:5])}" if known else "no prompt"
        raise TraceError(f"{run}: {matches} whose id begins with {prompt_id!r}")
    return _history(run, known.pop())


def find_row(run: Path, source: str, row: int) -> History:
    """Find the history of row `row` (counted from 0) of a source.

    Raises:
        TraceError: the run contains no such row.
    """
    for prompt in _rows(run, "prompts", "source", source):
        if prompt["row"] == row:
            return _history(run, prompt["prompt_id"])
    aside = [entry for entry in _rows(run, "set_aside", "source", source) if entry["row"] == row]
    if not aside:
        raise TraceError(f"{run}: nothing is known of row {row} of source {source!r}")
    identity = aside[0]["prompt_id"]
    return _history(run, identity) if identity else History(None, aside)


def _history(run: Path, identity: str) -> History:
    initial = list(_rows(run, "rollouts", "prompt_id", identity))
    evaluated: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _rows(run, "evaluation_rollouts", "prompt_id", identity):
        on = "" if row["benchmark"] == HELDOUT else f" on {row['benchmark']}"
        evaluated[f"{row['policy']}{on}"].append(row)
    # The row of an exact duplicate of the kept prompt has the same id in both columns.
    others = (row for row in _rows(run, "set_aside", "clashed_with", identity) if row["prompt_id"] != identity)
    aside = [*_rows(run, "set_aside", "prompt_id", identity), *others]
    return History(
        prompt=next(_rows(run, "prompts", "prompt_id", identity), None),
        set_aside=aside,
        graded=next(_rows(run, "graded", "prompt_id", identity), None),
        selected=any(_rows(run, "selected", "prompt_id", identity)),
        mixed=any(_rows(run, "mixture", "prompt_id", identity)),
        held_out=any(_rows(run, "heldout", "prompt_id", identity)),
        rollouts=[row["score"] for row in initial],
        groups=sorted(_rows(run, "ledger", "prompt_id", identity), key=lambda row: row["group"]),
        evaluated={policy: [row["score"] for row in rows] for policy, rows in evaluated.items()},
        episodes=dict(_episodes({"difficulty": initial, **evaluated})),
    )


def _episodes(
    rollouts: Mapping[str, Sequence[dict[str, Any]]],
) -> Iterator[tuple[str, tuple[ShownEpisode, int, float | None]]]:
    """Yield the episode of the first sample of each part of the rollouts that has episodes."""
    for name, rows in rollouts.items():
        for row in sorted(rows, key=lambda row: row["sample"])[:1]:
            if episode := ShownEpisode.of_row(row, TERMINAL_TURNS, TERMINAL_CHARS):
                yield name, (episode, row["sample"], row["score"])


def _ids(run: Path, name: str) -> set[str]:
    path = run / f"{name}.parquet"
    if not path.is_file():
        return set()
    column = pq.read_table(path, columns=["prompt_id"]).column("prompt_id")
    return set(pc.unique(column.drop_null()).to_pylist())


def _rows(run: Path, name: str, column: str, value: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with this value, or none if the run has no such table. Only these rows are loaded."""
    path = run / f"{name}.parquet"
    if path.is_file():
        table: pa.Table = pq.read_table(path, filters=[(column, "=", value)])
        yield from table.to_pylist()


def lines(history: History) -> Iterator[str]:
    """Yield the history as lines of text, in the order of the pipeline."""
    if prompt := history.prompt:
        yield f"prompt      {prompt['prompt_id']}, {prompt['domain']}, judged by {prompt['verifier']}"
        yield f"from        row {prompt['row']} of source {prompt['source']}"
        yield f"            {_short(prompt['messages'][-1]['content'])}"
    for row in history.set_aside:
        yield (
            f"set aside   row {row['row']} of {row['source']} by {row['stage']} ({row['kind']}): {row['reason']}"
            + (f", kept: {row['clashed_with'][:8]}" if row["clashed_with"] else "")
        )
    if graded := history.graded:
        verdict = "kept" if history.selected else "not kept"
        measured = "pass rate not measured"
        if graded["pass_rate"] is not None:
            measured = (
                f"pass rate {graded['pass_rate']:.1%}, mean score {graded['mean_score']:.3g} over "
                f"{graded['num_rollouts']} rollouts, "
                f"{_scores(history.rollouts)}, {graded['mean_tokens']:.0f} tokens"
            )
        yield f"difficulty  {measured}: {verdict}"
    if history.selected:
        sides = [name for name, holds in (("to train on", history.mixed), ("held out", history.held_out)) if holds]
        yield f"mixture     {', '.join(sides) or 'not taken'}"
    for group in history.groups:
        step = f" at step {group['step']}" if group["step"] is not None else ""
        yield (
            f"group {group['group']:<5} {group['fate']}{step}, policy {group['first_version']} to "
            f"{group['last_version']}, {_scores(group['scores'])}, {sum(group['num_tokens']):,} tokens"
            + (f": {group['detail']}" if group["detail"] else "")
        )
    if history.evaluated:
        yield "evaluation  " + ", ".join(f"{policy} {_scores(scores)}" for policy, scores in history.evaluated.items())
    for name, (episode, sample, score) in history.episodes.items():
        yield f"episode     {name}, sample {sample}, {_scores([score])}"
        yield from episode.lines(" " * 12)


def _scores(scores: list[float | None]) -> str:
    return "scores " + " ".join("?" if score is None else f"{score:g}" for score in scores)


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= PROMPT_CHARS else f"{line[:PROMPT_CHARS]} […]"
