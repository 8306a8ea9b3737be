"""The columns of the tables that cross a stage boundary, the identities in them, and what a stage says of itself."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import datetime
from typing import Any, Literal, Self, get_args

import pyarrow as pa

Domain = Literal["math", "code", "precise_if", "chat"]
DOMAINS: tuple[Domain, ...] = get_args(Domain)

Message = dict[str, str]


def _column(name: str, kind: pa.DataType, *, nullable: bool = False) -> pa.Field:
    return pa.field(name, kind, nullable=nullable)


TEXT = pa.large_string()
"""Of columns that may hold more than 2 GiB in one piece, where the offsets of Arrow's other type of text overflow."""

MESSAGES = pa.list_(pa.struct([_column("role", pa.string()), _column("content", TEXT)]))

PROMPTS = pa.schema(
    [
        _column("prompt_id", pa.string()),
        _column("domain", pa.string()),
        _column("source", pa.string()),
        _column("row", pa.int64()),
        _column("messages", MESSAGES),
        _column("verifier", pa.string()),
        _column("ground_truth", TEXT),
        _column("metadata", TEXT),
        _column("cluster", pa.string(), nullable=True),
    ]
)
"""The table of prompts, one a row.

`prompt_id` comes from `prompt_id()`. `row` is the number of the prompt's row in its source, from 0. `ground_truth` and
`metadata` are JSON text; `metadata` has what the user keeps (`columns`), what the messages held beside role and content
(`messages`) and the number of assistant's turns left off (`answers_left_off`). `cluster` is the same for prompts that
stay on one side of the split into training and held-out prompts: the key of the first of them
(`tasks.tables.texts.prompt_keys`) in hex digits; null for a prompt that is like no other.
"""

Stage = Literal["sourcing", "cleaning", "difficulty", "mixing", "evaluation"]
Kind = Literal[
    "malformed",
    "unusable",
    "length",
    "language",
    "ground_truth",
    "contaminated",
    "duplicate",
    "near_duplicate",
    "unjudged",
]
"""Why a row was set aside: it is no row; it has no prompt or ground truth that could be used; too long or too short; of
another language; its ground truth is none for its own verifier; it stands in an evaluation set; its prompt stands
elsewhere, or nearly so; none of its rollouts could be judged."""

SET_ASIDE = pa.schema(
    [
        _column("stage", pa.string()),
        _column("kind", pa.string()),
        _column("source", pa.string()),
        _column("row", pa.int64()),
        _column("prompt_id", pa.string(), nullable=True),
        _column("clashed_with", pa.string(), nullable=True),
        _column("reason", pa.string()),
        _column("value", pa.string()),
    ]
)
"""One set-aside row a row: the `Stage` and `Kind`, where it stood in its source (0-based), why, the value at fault.

`prompt_id` is null for what became no prompt, `clashed_with` is the prompt that was kept in its place, where one was.
"""

RESPONSES = pa.schema(
    [
        _column("prompt_id", pa.string()),
        _column("sample", pa.int32()),
        _column("response", TEXT),
        _column("num_tokens", pa.int32()),
        _column("finish_reason", pa.string()),
    ]
)
"""One completion a row, before it is judged."""

ROLLOUTS = pa.schema(
    [
        *RESPONSES,
        _column("score", pa.float64(), nullable=True),
        _column("error", pa.string(), nullable=True),
        _column("policy", pa.string()),
    ]
)
"""One completion a row. A response that could not be judged has a null `score` and says why in `error`."""

GRADED = pa.schema(
    [
        *PROMPTS,
        _column("pass_rate", pa.float64()),
        _column("num_rollouts", pa.int32()),
        _column("mean_tokens", pa.float64()),
    ]
)
"""Prompts with what the initial checkpoint makes of them. `pass_rate` is the mean score of the judged rollouts."""

COMPARED = pa.schema(
    [
        _column("prompt_id", pa.string()),
        _column("domain", pa.string()),
        _column("source", pa.string()),
        _column("variant", pa.string()),
        _column("pass_rate", pa.float64()),
        _column("num_rollouts", pa.int32()),
        _column("mean_tokens", pa.float64()),
    ]
)
"""What several checkpoints, or ways to use one, make of the same prompts: one row for each prompt and variant."""

MIXTURE = pa.schema([*GRADED, _column("repeat", pa.int32()), _column("order", pa.int64())])
"""Graded prompts in the order in which training visits them (`order` counts from 0).

A prompt that is up-sampled has several rows; `repeat` is how often it stood before.
"""

LEDGER = pa.schema(
    [
        _column("group", pa.int64()),
        _column("prompt_id", pa.string()),
        _column("domain", pa.string()),
        _column("actors", pa.list_(pa.int32())),
        _column("sampled_at", pa.float64()),
        _column("finished_at", pa.float64(), nullable=True),
        _column("first_version", pa.int64()),
        _column("last_version", pa.int64()),
        _column("scores", pa.list_(pa.float64())),
        _column("num_tokens", pa.list_(pa.int32())),
        _column("advantage_spread", pa.float64(), nullable=True),
        _column("fate", pa.string()),
        _column("step", pa.int64(), nullable=True),
        _column("detail", pa.string(), nullable=True),
    ]
)
"""One sampled group a row: when (seconds since the run began), by which policy versions, its scores, and its fate.

A null among `scores` is a response that could not be judged; these come last, and `detail` says how many and why.
"""

EVALUATION = pa.schema(
    [
        _column("benchmark", pa.string()),
        _column("metric", pa.string()),
        _column("policy", pa.string()),
        _column("value", pa.float64()),
        _column("low", pa.float64()),
        _column("high", pa.float64()),
        _column("n", pa.int64()),
    ]
)
"""One figure a row with its 95% confidence interval; `policy` is `before`, `after` or `gain`, `n` counts prompts."""

VALUE_CHARS = 200
"""Of the value at fault, a `SET_ASIDE` row holds so much."""


def canonical_json(value: Any) -> str:
    """`value` as JSON text that is equal for equal values: sorted keys, no spaces, UTF-8 kept readable."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def prompt_id(messages: Iterable[Mapping[str, str]], verifier: str, ground_truth: Any) -> str:
    """The identity of a prompt: 32 hex digits over its messages, verifier and ground truth (a JSON value)."""
    return _digest([_turns(messages), verifier, ground_truth])


def messages_key(messages: Iterable[Mapping[str, str]]) -> str:
    """The identity of what a policy sees of a prompt: 32 hex digits over its messages."""
    return _digest(_turns(messages))


def _turns(messages: Iterable[Mapping[str, str]]) -> list[list[str]]:
    return [[turn["role"], turn["content"]] for turn in messages]


def _digest(value: Any) -> str:
    return hashlib.sha256(canonical_json(value).encode()).hexdigest()[:32]


def set_aside_row(
    stage: Stage,
    kind: Kind,
    source: str,
    row: int,
    reason: str,
    value: Any,
    *,
    prompt_id: str | None = None,
    clashed_with: str | None = None,
) -> dict[str, Any]:
    """A row of `SET_ASIDE`; a long `value` is shortened, and one that is no text becomes JSON."""
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    text = text if len(text) <= VALUE_CHARS else text[: VALUE_CHARS - 3] + "..."
    # What is set aside may be the very text that no file can hold.
    reason, text = (each.encode(errors="backslashreplace").decode() for each in (reason, text))
    return {
        "stage": stage,
        "kind": kind,
        "source": source,
        "row": row,
        "prompt_id": prompt_id,
        "clashed_with": clashed_with,
        "reason": reason,
        "value": text,
    }


@dataclass
class StageSummary:
    """What a stage has to say about its run, as a typed output, so that a cached stage still shows everything.

    Attributes:
        stage: name of the stage; a stage that runs several times adds what tells them apart (`sourcing: gsm8k`).
        started_at: when the work began (UTC).
        seconds: wall time of the work.
        headline: one sentence for people.
        facts: all else that it recorded, for the report and for programs: JSON values.
        run: the run that it was made in (`tasks.flyte.stages.run_id`); in any other it came from the cache.
        image: the container image that it was made in (`tasks.lineage.provenance.image`).
        cores, gpus: what it held for `seconds` (`tasks.machine.resources`).
    """

    stage: str
    started_at: datetime
    seconds: float
    headline: str
    facts: dict = field(default_factory=dict)  # of dict[str, Any], flytekit warns that it would pickle the values
    run: str = ""
    image: str = ""
    cores: float = 0.0
    gpus: float = 0.0

    def __str__(self) -> str:
        return self.headline

    def as_json(self) -> dict[str, Any]:
        """As JSON values, for the metadata of a table."""
        return asdict(self) | {"started_at": self.started_at.isoformat()}

    @classmethod
    def of_json(cls, values: Mapping[str, Any]) -> Self:
        """What `as_json` gave."""
        return cls(**{**values, "started_at": datetime.fromisoformat(values["started_at"])})
