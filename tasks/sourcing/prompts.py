"""Rows into the prompts table. Every row that is read ends as a prompt or, with a reason, among those set aside."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from tasks.config import SpecError
from tasks.sourcing.columns import DOMAIN_OF
from tasks.sourcing.ground_truths import asked_instead, graded, verifier_of
from tasks.sourcing.loaders import Malformed, Row, open_rows
from tasks.sourcing.messages import Chat, chat_from
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError, value_at
from tasks.tables.parquet import table_from_rows
from tasks.tables.schemas import PROMPTS, SET_ASIDE, Kind, canonical_json, prompt_id, set_aside_row

BATCH = 4096

LONG, TWICE = "prompt longer than max_prompt_chars", "duplicate"
KINDS: dict[str, Kind] = {LONG: "length", TWICE: "duplicate"}
"""Kinds of set-aside rows by kinds of reasons; all else is `unusable`."""


@dataclass(frozen=True)
class SourcedPrompts:
    """What one source gave.

    Attributes:
        prompts: table of `PROMPTS`, in the order of the source.
        set_aside: table of `SET_ASIDE`, in the order of the source.
        counts: `read` rows, of which `usable` became prompts and `set_aside` did not, `duplicates` among the latter;
            `answers_left_off` are the prompts that a turn of the assistant followed.
        reasons: how many rows were set aside for each kind of reason, the most common first.
    """

    prompts: pa.Table
    set_aside: pa.Table
    counts: dict[str, int]
    reasons: dict[str, int]


def build_prompts(source: SourceSpec, max_prompt_chars: int) -> SourcedPrompts:
    """Read `source` and map its rows to prompts; equal inputs give equal tables.

    Raises `SpecError` where the source cannot be opened, or where none of its rows is usable.
    """
    kept, set_aside = _Rows(PROMPTS, source.name), _Rows(SET_ASIDE, source.name)
    row_of: dict[str, int] = {}
    reasons: Counter[str] = Counter()
    answered = 0
    for row in open_rows(source):
        try:
            prompt = _prompt(row, source, max_prompt_chars)
            earlier = row_of.setdefault(prompt["prompt_id"], row.index)
            if earlier != row.index:
                raise UnusableError(f"duplicate of row {earlier}", prompt["messages"][-1]["content"], TWICE)
        except UnusableError as error:
            reasons[error.kind] += 1
            kind = "malformed" if isinstance(row, Malformed) else KINDS.get(error.kind, "unusable")
            identity = prompt["prompt_id"] if kind == "duplicate" else None
            set_aside.append(
                set_aside_row(
                    "sourcing",
                    kind,
                    source.name,
                    row.index,
                    error.reason,
                    error.value,
                    prompt_id=identity,
                    clashed_with=identity,
                )
            )
        else:
            kept.append(prompt)
            answered += "answers_left_off" in json.loads(prompt["metadata"])
    if not row_of:
        raise SpecError(_nothing_usable(source, reasons))
    counts = {
        "read": len(row_of) + reasons.total(),
        "usable": len(row_of),
        "set_aside": reasons.total(),
        "duplicates": reasons[TWICE],
        "answers_left_off": answered,
    }
    return SourcedPrompts(kept.table(), set_aside.table(), counts, dict(reasons.most_common()))


class _Rows:
    """Rows on their way into a table: held as Arrow batches, far smaller than Python objects."""

    def __init__(self, schema: pa.Schema, where: str) -> None:
        self._schema, self._where = schema, where
        self._tables: list[pa.Table] = [schema.empty_table()]
        self._pending: list[dict[str, Any]] = []

    def append(self, row: dict[str, Any]) -> None:
        self._pending.append(row)
        if len(self._pending) == BATCH:
            self._flush()

    def table(self) -> pa.Table:
        self._flush()
        return pa.concat_tables(self._tables).combine_chunks()

    def _flush(self) -> None:
        self._tables.append(table_from_rows(self._pending, self._schema, self._where))
        self._pending = []


def _prompt(row: Row | Malformed, source: SourceSpec, max_prompt_chars: int) -> dict[str, Any]:
    if isinstance(row, Malformed):
        raise UnusableError(row.reason, row.value, row.reason.split(":")[0])
    columns = source.columns
    own = verifier_of(row.columns, source)
    verifier, truth = graded(row.columns, source)
    tests = _tests_shown(truth, source) if own == "code" else ""
    chat = chat_from(row.columns, columns, tests, asked_instead(row.columns, own, columns))
    messages = chat.messages
    chars = sum(len(message["content"]) for message in messages)
    if chars > max_prompt_chars:
        reason = f"prompt of {chars} characters, more than max_prompt_chars {max_prompt_chars}"
        raise UnusableError(reason, messages[-1]["content"], LONG)
    kept = {name: _kept(row.columns, name) for name in columns.keep}
    try:
        truth_text = canonical_json(truth)
        metadata = canonical_json({"row": row.index, **({"columns": kept} if kept else {}), **_beside(chat)})
        (truth_text + metadata).encode()
        identity = prompt_id(messages, verifier, truth)
    except UnicodeEncodeError as error:
        raise UnusableError("text that is not valid Unicode", error.object) from None
    except (TypeError, ValueError) as error:
        raise UnusableError(
            f"a kept column is no JSON value: {error}", kept, "a kept column is no JSON value"
        ) from None
    return {
        "prompt_id": identity,
        "domain": DOMAIN_OF[own],
        "source": source.name,
        "messages": messages,
        "verifier": verifier,
        "ground_truth": truth_text,
        "metadata": metadata,
    }


def _kept(row: Mapping[str, Any], path: str) -> Any:
    try:
        return value_at(row, path)
    except KeyError:
        return None


def _beside(chat: Chat) -> dict[str, Any]:
    """What a prompt's metadata say of its messages."""
    extras = {"messages": chat.extras} if any(chat.extras) else {}
    return extras | ({"answers_left_off": chat.answers} if chat.answers else {})


def _tests_shown(truth: Any, source: SourceSpec) -> str:
    """What stands for `{tests}` in a template of code."""
    own = truth["rewards"][0]["ground_truth"] if source.rewards else truth
    return "\n".join(map(str, own.get("tests") or own["cases"]))


def _nothing_usable(source: SourceSpec, reasons: Counter[str]) -> str:
    if not reasons:
        return f"source {source.name!r}: it has no rows"
    common = "; ".join(f"{count} times: {reason}" for reason, count in reasons.most_common(3))
    return f"source {source.name!r}: none of its {reasons.total()} rows is usable: {common}"
