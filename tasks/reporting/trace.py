"""Traces one prompt through a run: its source, and its results in every stage, in training and in evaluation.

The history is read from the tables of a run's folder (`outputs/<run>`). `docs/tracing.md` has the equivalent query.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tasks.excerpts.episodes import TERMINAL_CHARS, TERMINAL_TURNS, ShownEpisode
from tasks.excerpts.texts import first_chars
from tasks.reporting.mixture_lookup import why_not_taken
from tasks.reporting.row_lookup import TraceError, describe_place, why_unknown
from tasks.storage.run_folders import check_run, make_hint
from tasks.tables.parquet import read_metadata
from tasks.tables.schemas import DUPLICATE_OF, HELDOUT

PROMPT_CHARS = 300
"""Maximum number of characters of a prompt that a trace prints."""


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
        left_out: why the row was not read, or None if it was.
        verdict: what the difficulty filter decided, with the bound of a prompt that was dropped.
        not_taken: why a prompt that passed the filter is not in the mixture.
        places: the file and the number in it of each row above, by source and row.
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
    left_out: str | None = None
    verdict: str = ""
    not_taken: str = ""
    places: dict[tuple[str, int], str] = field(default_factory=dict)


def find(run: Path, prompt_id: str) -> History:
    """Find the history of the prompt whose id begins with `prompt_id`.

    Raises:
        TraceError: the folder is not a run, or no prompt or several prompts match.
    """
    _check_has_data(run)
    if len(prompt_id) < 4:
        raise TraceError(f"{prompt_id!r}: give at least four digits of a prompt's id")
    known = {
        known for name in ("prompts", "set_aside") for known in _list_ids(run, name) if known.startswith(prompt_id)
    }
    if not known and (questions := _find_question_rows(run, prompt_id)):
        return _add_places(run, History(None, questions))
    current = {_find_current_id(run, identity) for identity in known}
    if len(current) != 1:
        matches = f"{len(current)} prompts: {', '.join(sorted(current)[:5])}" if current else "no prompt"
        raise TraceError(f"{run}: {matches} whose id begins with {prompt_id!r}")
    return _build_history(run, current.pop(), known)


def _check_has_data(run: Path) -> None:
    check_run(run)
    if not (run / "prompts.parquet").is_file():
        elsewhere = make_hint(run, "prompts.parquet")
        raise TraceError(f"{run} contains no prompts.parquet: --run names the folder of a run with data{elsewhere}")


def _find_question_rows(run: Path, prompt_id: str) -> list[dict[str, Any]]:
    """Return the dropped rows that contain the question of an evaluation set whose id begins with `prompt_id`."""
    rows = _find_rows(run, "set_aside", "kind", "contaminated")
    return [row for row in rows if (row["clashed_with"] or "").startswith(prompt_id)]


def find_row(run: Path, source: str, row: int) -> History:
    """Find the history of row `row` (counted from 0) of a source.

    Raises:
        TraceError: the folder is not a run with data, or the run contains no such row.
    """
    _check_has_data(run)
    aside = list(_find_row(run, "set_aside", source, row))
    identity = next((entry["prompt_id"] for entry in (*_find_row(run, "prompts", source, row), *aside)), None)
    if identity is not None:
        return _build_history(run, _find_current_id(run, identity), {identity})
    if not aside:
        return History(None, left_out=why_unknown(run, source, row))
    return _add_places(run, History(None, aside))


def _find_current_id(run: Path, identity: str) -> str:
    """Return the id of a prompt after cleaning, which changes the id if it escapes control tokens in the prompt.

    Rows that repeat the prompt were dropped before, so they name its earlier id.
    """
    if any(_find_rows(run, "prompts", "prompt_id", identity)):
        return identity
    for entry in _find_rows(run, "set_aside", "clashed_with", identity):
        if entry["stage"] == "sourcing" and entry["reason"].startswith(DUPLICATE_OF):
            first = (entry["source"], int(entry["reason"].removeprefix(DUPLICATE_OF)))
            rows = (*_find_row(run, "prompts", *first), *_find_row(run, "set_aside", *first))
            return next((row["prompt_id"] for row in rows if row["prompt_id"]), identity)
    return identity


def _find_earlier_ids(run: Path, prompt: Mapping[str, Any]) -> set[str]:
    """Return the ids under which dropped rows repeat a prompt: the id before cleaning, or none."""
    reason = f"{DUPLICATE_OF}{prompt['row']}"
    rows = _find_rows(run, "set_aside", "source", prompt["source"])
    return {row["clashed_with"] for row in rows if row["stage"] == "sourcing" and row["reason"] == reason}


def _build_history(run: Path, identity: str, earlier: Set[str] = frozenset()) -> History:
    """Return the history of a prompt, with the rows that were dropped because of it or its `earlier` ids."""
    initial = list(_find_rows(run, "rollouts", "prompt_id", identity))
    evaluated: defaultdict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in _find_rows(run, "evaluation_rollouts", "prompt_id", identity):
        on = "" if row["benchmark"] == HELDOUT else f" on {row['benchmark']}"
        evaluated[f"{row['policy']}{on}"].append(row)
    prompt = next(_find_rows(run, "prompts", "prompt_id", identity), None)
    ids = [identity, *sorted((earlier | (_find_earlier_ids(run, prompt) if prompt else set())) - {identity})]
    aside = [row for known in ids for row in _find_rows(run, "set_aside", "prompt_id", known)]
    # The row of an exact duplicate of the kept prompt has the same id in both columns.
    aside += [row for known in ids for row in _find_rows(run, "set_aside", "clashed_with", known) if row not in aside]
    graded = next(_find_rows(run, "graded", "prompt_id", identity), None)
    history = History(
        prompt=prompt,
        set_aside=[row | {"clashed_with": identity} if row["clashed_with"] in ids else row for row in aside],
        graded=graded,
        selected=any(_find_rows(run, "selected", "prompt_id", identity)),
        mixed=any(_find_rows(run, "mixture", "prompt_id", identity)),
        held_out=any(_find_rows(run, "heldout", "prompt_id", identity)),
        rollouts=[row["score"] for row in initial],
        groups=sorted(_find_rows(run, "ledger", "prompt_id", identity), key=lambda row: row["group"]),
        evaluated={policy: [row["score"] for row in rows] for policy, rows in evaluated.items()},
        episodes=dict(_find_episodes({"difficulty": initial, **evaluated})),
    )
    history.verdict = _describe_verdict(run, history)
    if graded and history.selected and not history.mixed and not history.held_out:
        is_alike = any(row["stage"] == "mixing" and row["prompt_id"] == identity for row in aside)
        history.not_taken = ": it is like a prompt that is held out" if is_alike else why_not_taken(run, graded)
    return _add_places(run, history)


def _add_places(run: Path, history: History) -> History:
    """Add the places in files of the history's rows."""
    rows = [*([history.prompt] if history.prompt else []), *history.set_aside]
    history.places = {(row["source"], row["row"]): describe_place(run, row["source"], row["row"]) for row in rows}
    return history


def _describe_verdict(run: Path, history: History) -> str:
    graded = history.graded
    if graded is None or history.selected:
        return "kept"
    path = run / "selected.parquet"
    bounds = read_metadata(path).get("spec", {}).get("bounds") if path.is_file() else None
    if bounds is None or graded["mean_score"] is None:
        return "not kept"
    score, highest, lowest = graded["mean_score"], bounds["max_mean_score"], bounds["min_mean_score"]
    if highest is not None and score >= highest:
        return f"not kept: too easy, not below max_mean_score {highest}"
    if lowest is not None and score <= lowest:
        return f"not kept: too hard, not above min_mean_score {lowest}"
    return "not kept"


def _find_episodes(
    rollouts: Mapping[str, Sequence[dict[str, Any]]],
) -> Iterator[tuple[str, tuple[ShownEpisode, int, float | None]]]:
    """Yield the episode of the first sample of each part of the rollouts that has episodes."""
    for name, rows in rollouts.items():
        for row in sorted(rows, key=lambda row: row["sample"])[:1]:
            if episode := ShownEpisode.from_row(row, TERMINAL_TURNS, TERMINAL_CHARS):
                yield name, (episode, row["sample"], row["score"])


def _list_ids(run: Path, name: str) -> set[str]:
    path = run / f"{name}.parquet"
    if not path.is_file():
        return set()
    column = pq.read_table(path, columns=["prompt_id"]).column("prompt_id")
    return set(pc.unique(column.drop_null()).to_pylist())


def _find_row(run: Path, name: str, source: str, row: int) -> Iterator[dict[str, Any]]:
    return (entry for entry in _find_rows(run, name, "source", source) if entry["row"] == row)


def _find_rows(run: Path, name: str, column: str, value: str) -> Iterator[dict[str, Any]]:
    """Yield the rows of a table with this value, or none if the run has no such table. Only these rows are loaded."""
    path = run / f"{name}.parquet"
    if path.is_file():
        table: pa.Table = pq.read_table(path, filters=[(column, "=", value)])
        yield from table.to_pylist()


def format_lines(history: History) -> Iterator[str]:
    """Yield the history as lines of text, in the order of the pipeline."""
    if prompt := history.prompt:
        yield f"prompt      {prompt['prompt_id']}, {prompt['domain']}, judged by {prompt['verifier']}"
        in_file = history.places.get((prompt["source"], prompt["row"]), "")
        yield f"from        row {prompt['row']} of source {prompt['source']}{in_file}"
        yield f"            {first_chars(prompt['messages'][-1]['content'], PROMPT_CHARS)}"
    if history.left_out:
        yield f"left out    {history.left_out}"
    for row in history.set_aside:
        yield from _set_aside_lines(row, history)
    if graded := history.graded:
        measured = "pass rate not measured"
        if graded["pass_rate"] is not None:
            measured = (
                f"pass rate {graded['pass_rate']:.1%}, mean score {graded['mean_score']:.3g} over "
                f"{graded['num_rollouts']} rollouts, "
                f"{_format_scores(history.rollouts)}, {graded['mean_tokens']:.0f} tokens"
            )
        yield f"difficulty  {measured}: {history.verdict}"
    if history.selected:
        sides = [name for name, holds in (("to train on", history.mixed), ("held out", history.held_out)) if holds]
        yield f"mixture     {', '.join(sides) or 'not taken'}{history.not_taken}"
    for group in history.groups:
        step = f" at step {group['step']}" if group["step"] is not None else ""
        yield (
            f"group {group['group']:<5} {group['fate']}{step}, policy {group['first_version']} to "
            f"{group['last_version']}, {_format_scores(group['scores'])}, {sum(group['num_tokens']):,} tokens"
            + (f": {group['detail']}" if group["detail"] else "")
        )
    if history.evaluated:
        yield "evaluation  " + ", ".join(
            f"{policy} {_format_scores(scores)}" for policy, scores in history.evaluated.items()
        )
    for name, (episode, sample, score) in history.episodes.items():
        yield f"episode     {name}, sample {sample}, {_format_scores([score])}"
        yield from episode.lines(" " * 12)


def _set_aside_lines(row: Mapping[str, Any], history: History) -> Iterator[str]:
    in_file = history.places.get((row["source"], row["row"]), "")
    of_set = row["kind"] == "contaminated"
    clash = f", {'question' if of_set else 'kept'}: {row['clashed_with'][:8]}" if row["clashed_with"] else ""
    origin = f"row {row['row']} of {row['source']}{in_file}"
    yield f"set aside   {origin} by {row['stage']} ({row['kind']}): {row['reason']}{clash}"
    if of_set:
        yield f"            its text: {first_chars(row['value'], PROMPT_CHARS)}"
        if row["clashed_text"]:
            yield f"            the question: {first_chars(row['clashed_text'], PROMPT_CHARS)}"


def _format_scores(scores: list[float | None]) -> str:
    return "scores " + " ".join("?" if score is None else f"{score:g}" for score in scores)
