"""Saves the groups that are sampled ahead of the learner (the window) in a checkpoint, and loads them when a
run resumes, so that responses are not generated and scored again.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tasks.failures import MistakeError
from tasks.generation.interface import Completion, EpisodeEnd, EpisodeTurn, Routes, VersionSpan
from tasks.recipe.objective import ShapingConfig
from tasks.tables.parquet import build_table, read_table, storable
from tasks.training.groups.group import Group, JudgedGroup, Prompt, Stage
from tasks.training.records.routes import ROUTES, decode_routes, encode_routes
from tasks.verifiers import Reward, Score

_REWARD = pa.struct([("name", pa.string()), ("weight", pa.float64()), ("value", pa.float64())])
_SCORE = pa.struct(
    [
        ("value", pa.float64()),
        ("passed", pa.bool_()),
        ("detail", pa.string()),
        ("error", pa.string()),
        ("rewards", pa.list_(_REWARD)),
        ("timed_out", pa.bool_()),
    ]
)
_MESSAGES = pa.list_(pa.struct([("role", pa.string()), ("content", pa.string())]))
_TURN = pa.struct(
    [
        ("start", pa.int64()),
        ("end", pa.int64()),
        ("text", pa.string()),
        ("inserted", _MESSAGES),
        ("context", pa.list_(pa.int32())),
    ]
)
_FAILURE = pa.struct([("function", pa.string()), ("reason", pa.string()), ("may_pass", pa.bool_())])
_END = pa.struct([("reward", pa.float64()), ("passed", pa.bool_()), ("error", pa.string()), ("failure", _FAILURE)])
_COMPLETION = pa.struct(
    [
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("versions", pa.list_(pa.struct([("version", pa.int64()), ("start", pa.int64()), ("end", pa.int64())]))),
        ("turns", pa.list_(_TURN)),
        ("end", _END),
    ]
)
ARRAYS = ("token_ids", "logprobs")
"""Fields of a completion that have one element per token."""
SAVED_GROUPS = pa.schema(
    [
        pa.field("group", pa.int64(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("sampled_at", pa.float64(), nullable=False),
        pa.field("finished_at", pa.float64()),
        pa.field("policy_version", pa.int64(), nullable=False),
        pa.field("actor", pa.int32(), nullable=False),
        pa.field("finished", pa.bool_(), nullable=False),
        pa.field("completion", _COMPLETION),
        pa.field("score", _SCORE),
        pa.field("routes", ROUTES),
    ]
)
"""Schema of `groups.parquet`: one row per sample, with the samples of a group in consecutive rows.

`completion` is null if nothing was generated. If generation had not `finished`, it contains the turns of the episode so
far. `score` is null if scoring had not finished. `finished_at` is null if the group was not ready. `routes` is null
without `routing_replay`.
"""


def make_groups_table(groups: Iterable[Group | JudgedGroup]) -> pa.Table:
    """Return groups, with the completions and scores that they have so far, as a table of `SAVED_GROUPS`."""
    finished = [
        (group.sampled, group.finished_at) if isinstance(group, JudgedGroup) else (group, None) for group in groups
    ]
    rows = [
        {
            "group": group.number,
            "prompt_id": group.prompt.prompt_id,
            "sampled_at": group.sampled_at,
            "finished_at": finished_at,
            "policy_version": group.policy_version,
            "actor": sample.actor,
            "finished": sample.completion is not None,
            "completion": _make_completion_row(generated)
            if (generated := sample.completion or sample.recorded)
            else None,
            "score": _score_row(sample.score) if sample.score else None,
            "routes": encode_routes(generated.routes) if generated else None,
        }
        for group, finished_at in finished
        for sample in group.samples
    ]
    return build_table(rows, SAVED_GROUPS, "the groups of the window")


def load_groups(
    path: Path, prompts: Mapping[str, Prompt], shaping: ShapingConfig
) -> tuple[list[JudgedGroup], list[Group]]:
    """Return the groups that were ready and those in flight, each list in the order of the table.

    Args:
        path: a file of `SAVED_GROUPS`.
        prompts: the mixture's prompts, by id.
        shaping: options of reward shaping, for the groups that are ready.

    Raises:
        TableError: the file does not contain such a table.
        ValueError: the mixture lacks the prompt of a group.
    """
    by_number: dict[int, list[dict[str, Any]]] = {}
    for row in _read_rows(read_table(path, SAVED_GROUPS)):
        by_number.setdefault(row["group"], []).append(row)
    ready, in_flight = [], []
    for rows in by_number.values():
        group, finished_at = _build_group(rows, prompts), rows[0]["finished_at"]
        if finished_at is None:
            in_flight.append(group)
        else:
            ready.append(JudgedGroup.from_group(group, shaping, finished_at))
    return ready, in_flight


def _read_rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the table's rows, with tokens and log-probabilities as numpy arrays.

    As Python numbers, the tokens and log-probabilities of a window would fill a machine's memory.
    """
    completions = table.column("completion").combine_chunks()
    small = [name for name in completions.type.names if name not in ARRAYS]
    without = pa.StructArray.from_arrays([completions.field(name) for name in small], small, mask=completions.is_null())
    rows = table.set_column(table.column_names.index("completion"), "completion", without).to_pylist()
    arrays = {name: completions.field(name) for name in ARRAYS}
    for index, row in enumerate(rows):
        if row["completion"]:
            row["completion"] |= {name: values[index].values.to_numpy().copy() for name, values in arrays.items()}
        yield row


def _build_group(rows: list[dict[str, Any]], prompts: Mapping[str, Prompt]) -> Group:
    first = rows[0]
    if first["prompt_id"] not in prompts:
        raise MistakeError(f"the checkpoint contains a group of prompt {first['prompt_id']}, which the mixture lacks")
    group = Group.create(
        first["group"],
        prompts[first["prompt_id"]],
        len(rows),
        sampled_at=first["sampled_at"],
        policy_version=first["policy_version"],
    )
    for sample, row in zip(group.samples, rows, strict=True):
        sample.actor = row["actor"]
        generated = _build_completion(row["completion"], decode_routes(row["routes"])) if row["completion"] else None
        if row["finished"]:
            sample.completion, sample.stage = generated, Stage.JUDGING
        else:
            sample.recorded = generated
        if score := row["score"]:
            sample.score = Score(**{**score, "rewards": tuple(Reward(**part) for part in score["rewards"])})
            sample.stage = Stage.JUDGED
    return group


def _build_completion(row: dict[str, Any], routes: Routes | None) -> Completion:
    return Completion(
        row["text"],
        row["token_ids"],
        row["logprobs"],
        row["finish_reason"],
        [VersionSpan(**span) for span in row["versions"]],
        tuple(_build_turn(turn) for turn in row["turns"]),
        row["end"] and EpisodeEnd.of_fields(row["end"]),
        routes,
    )


def _build_turn(row: dict[str, Any]) -> EpisodeTurn:
    context = None if row["context"] is None else np.array(row["context"], np.int32)
    return EpisodeTurn(**{**row, "inserted": tuple(row["inserted"]), "context": context})


def _make_completion_row(completion: Completion) -> dict[str, Any]:
    spans = [{"version": span.version, "start": span.start, "end": span.end} for span in completion.versions]
    turns = [
        {
            **turn._asdict(),
            "text": storable(turn.text),
            "inserted": [{"role": said["role"], "content": storable(said["content"])} for said in turn.inserted],
        }
        for turn in completion.turns
    ]
    return {
        **vars(completion),
        "text": storable(completion.text),
        "versions": spans,
        "turns": turns,
        "end": _end_row(completion.end) if completion.end else None,
    }


def _end_row(end: EpisodeEnd) -> dict[str, Any]:
    return {**end.to_fields(), "error": end.error and storable(end.error)}


def _score_row(score: Score) -> dict[str, Any]:
    texts = {"detail": storable(score.detail), "error": score.error and storable(score.error)}
    fields = {field.name: getattr(score, field.name) for field in _SCORE}
    return {**fields, **texts, "rewards": [reward._asdict() for reward in score.rewards]}
