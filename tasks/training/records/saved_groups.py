"""The groups of the window in a checkpoint, so that responses that are generated and judged are not generated again."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa

from tasks.failures import MistakeError
from tasks.generation.interface import Completion, VersionSpan
from tasks.tables.parquet import read_table, storable, table_from_rows
from tasks.training.groups.group import Group, JudgedGroup, Prompt, Stage
from tasks.training.objective import ShapingConfig
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
_COMPLETION = pa.struct(
    [
        ("text", pa.string()),
        ("token_ids", pa.list_(pa.int32())),
        ("logprobs", pa.list_(pa.float32())),
        ("finish_reason", pa.string()),
        ("versions", pa.list_(pa.struct([("version", pa.int64()), ("start", pa.int64()), ("end", pa.int64())]))),
    ]
)
ARRAYS = ("token_ids", "logprobs")
"""Fields of a completion that have an element for each token."""
SAVED_GROUPS = pa.schema(
    [
        pa.field("group", pa.int64(), nullable=False),
        pa.field("prompt_id", pa.string(), nullable=False),
        pa.field("sampled_at", pa.float64(), nullable=False),
        pa.field("finished_at", pa.float64()),
        pa.field("policy_version", pa.int64(), nullable=False),
        pa.field("actor", pa.int32(), nullable=False),
        pa.field("completion", _COMPLETION),
        pa.field("score", _SCORE),
    ]
)
"""Schema of `groups.parquet`: one sample a row, the samples of a group in successive rows.

`completion` is null where generation had not finished, `score` where judging had not, `finished_at` where the group
was not ready.
"""


def groups_table(groups: Iterable[Group | JudgedGroup]) -> pa.Table:
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
            "completion": _completion_row(sample.completion) if sample.completion else None,
            "score": _score_row(sample.score) if sample.score else None,
        }
        for group, finished_at in finished
        for sample in group.samples
    ]
    return table_from_rows(rows, SAVED_GROUPS, "the groups of the window")


def load_groups(
    path: Path, prompts: Mapping[str, Prompt], shaping: ShapingConfig
) -> tuple[list[JudgedGroup], list[Group]]:
    """Return the groups that were ready and those in flight, each list in the order of the table.

    Args:
        path: a file of `SAVED_GROUPS`.
        prompts: the mixture's prompts, by id.
        shaping: how scores become the rewards of groups that are ready.

    Raises:
        TableError: the file holds no such table.
        ValueError: the mixture lacks the prompt of a group.
    """
    by_number: dict[int, list[dict[str, Any]]] = {}
    for row in _rows(read_table(path, SAVED_GROUPS)):
        by_number.setdefault(row["group"], []).append(row)
    ready, in_flight = [], []
    for rows in by_number.values():
        group, finished_at = _group(rows, prompts), rows[0]["finished_at"]
        if finished_at is None:
            in_flight.append(group)
        else:
            ready.append(JudgedGroup.of(group, shaping, finished_at))
    return ready, in_flight


def _rows(table: pa.Table) -> Iterator[dict[str, Any]]:
    """Yield the table's rows, with tokens and log-probabilities as numpy arrays: as Python numbers, those of a window
    would fill a machine's memory.
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


def _group(rows: list[dict[str, Any]], prompts: Mapping[str, Prompt]) -> Group:
    first = rows[0]
    if first["prompt_id"] not in prompts:
        raise MistakeError(f"the checkpoint holds a group of prompt {first['prompt_id']}, which the mixture lacks")
    group = Group.of(
        first["group"],
        prompts[first["prompt_id"]],
        len(rows),
        sampled_at=first["sampled_at"],
        policy_version=first["policy_version"],
    )
    for sample, row in zip(group.samples, rows, strict=True):
        sample.actor = row["actor"]
        if completion := row["completion"]:
            sample.completion = Completion(
                completion["text"],
                completion["token_ids"],
                completion["logprobs"],
                completion["finish_reason"],
                [VersionSpan(**span) for span in completion["versions"]],
            )
            sample.stage = Stage.JUDGING
        if score := row["score"]:
            sample.score = Score(**{**score, "rewards": tuple(Reward(**part) for part in score["rewards"])})
            sample.stage = Stage.JUDGED
    return group


def _completion_row(completion: Completion) -> dict[str, Any]:
    spans = [{"version": span.version, "start": span.start, "end": span.end} for span in completion.versions]
    return {**vars(completion), "text": storable(completion.text), "versions": spans}


def _score_row(score: Score) -> dict[str, Any]:
    texts = {"detail": storable(score.detail), "error": score.error and storable(score.error)}
    fields = {field.name: getattr(score, field.name) for field in _SCORE}
    return {**fields, **texts, "rewards": [reward._asdict() for reward in score.rewards]}
