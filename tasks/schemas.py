"""The tables and types that cross a stage boundary.

Every table is one Parquet file. A stage validates a table where it writes it (`write_table`) and where it reads it
(`read_table`), so that a malformed file is one clear error at the border and never a surprise three rooms later.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, BinaryIO, Literal, Self, get_args

import pyarrow as pa
import pyarrow.parquet as pq

from tasks.contents import CLAIM, ContentError, check_pages, write_parquet
from tasks.failures import MistakeError

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
        _column("messages", MESSAGES),
        _column("verifier", pa.string()),
        _column("ground_truth", TEXT),
        _column("metadata", TEXT),
    ]
)
"""One prompt a row. `ground_truth` and `metadata` are JSON text; `prompt_id` comes from `prompt_id()`."""

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


CLUSTER = "cluster"
"""The key of a prompt's `metadata` by which prompts that are alike stay on one side of the split (`tasks.mixing`): its
value is that of the first of them in `tasks.texts.prompt_keys`, in hex digits."""

BATCH_ROWS = 4096
"""Rows that `read_batches` reads at a time."""

SCHEMA_VERSION = 1
"""Of all tables; in the metadata of each. It grows with a change that a reader of the version before cannot read."""

VALUE_CHARS = 200
"""Of the value at fault, a `SET_ASIDE` row holds so much."""


class TableError(MistakeError):
    """A table that is not what its stage was promised: names the file, the column or row, and the value."""


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


def table_from_rows(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, where: str) -> pa.Table:
    """The rows as a table of `schema`; raises `TableError` that names the column at fault."""
    listed = list(rows)
    columns = []
    for column in schema:
        try:
            columns.append(pa.array([row[column.name] for row in listed], type=column.type))
        except KeyError:
            raise TableError(f"{where}: a row lacks the column {column.name!r}") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TableError(f"{where}: column {column.name!r} wants {column.type}: {error}") from None
    return validate(pa.table(columns, names=schema.names), schema, where)


def validate(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """The table with `schema`'s columns, in its order and types; metadata of the file is kept.

    A column that may be null, and that an older version of the schema did not have, is filled with nulls.

    Raises `TableError` for a missing column, a column of another type, or a null where none may be.
    """
    for column in schema:
        if column.nullable and column.name not in table.column_names:
            table = table.append_column(column, pa.nulls(table.num_rows, column.type))
    missing = [name for name in schema.names if name not in table.column_names]
    if missing:
        raise TableError(f"{where}: missing columns {missing}; found {table.column_names}")
    for column in schema:
        if not column.nullable and table.column(column.name).null_count:
            row = table.column(column.name).is_null().to_pylist().index(True)
            raise TableError(f"{where}: column {column.name!r} is null in row {row}")
    try:
        return table.select(schema.names).cast(schema.with_metadata(table.schema.metadata))
    except (pa.ArrowInvalid, pa.ArrowTypeError, pa.ArrowNotImplementedError, ValueError) as error:
        raise TableError(f"{where}: {error}") from None


def with_user_columns(schema: pa.Schema, *others: pa.Schema) -> pa.Schema:
    """`schema`, and after it the columns of `others` that are named in none of this module's: a user has added them.

    They may be null: not every table has them.

    Raises:
        TableError: a name has different types.
    """
    tables = (schema, PROMPTS, SET_ASIDE, RESPONSES, ROLLOUTS, COMPARED, MIXTURE, LEDGER)
    ours = {name for table in tables for name in table.names}
    found: dict[str, pa.DataType] = {}
    for column in (column for other in others for column in other if column.name not in ours):
        if found.setdefault(column.name, column.type) != column.type:
            raise TableError(f"column {column.name!r} is {found[column.name]} in one table, {column.type} in another")
    return pa.schema([*schema, *(_column(name, kind, nullable=True) for name, kind in found.items())])


def columns_of(path: str | Path) -> pa.Schema:
    """The columns of a Parquet file.

    Raises:
        TableError: it is not such a file.
    """
    with _readable(Path(path)):
        return pq.read_schema(path)


def write_table(
    path: str | Path, table: pa.Table, schema: pa.Schema, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write `table` to one Parquet file with its digest; equal tables and metadata give equal bytes.

    `metadata` values are stored as JSON text in the file's key-value metadata (`read_metadata` reads them back).
    """
    return write_batches(path, [table], schema, metadata)


def write_batches(
    path: str | Path,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    metadata: Mapping[str, Any] | None = None,
    last: Callable[[], Mapping[str, Any]] = dict,
) -> Path:
    """As `write_table`, for a table that comes in parts; equal rows give equal bytes, whatever the parts are.

    `last` gives what is only known once all parts were taken, as further metadata.
    """
    path = Path(path)
    checked = (validate(table, schema, str(path)) for table in tables)
    entries = _entries({**(metadata or {}), VERSION: SCHEMA_VERSION})
    write_parquet(path, checked, schema.with_metadata(entries), lambda: _entries(last()))
    return path


VERSION = "schema_version"
"""The entry of a table's metadata with its `SCHEMA_VERSION`."""


def _entries(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {key: canonical_json(value) for key, value in sorted(metadata.items())}


def read_table(path: str | Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file as `schema`.

    Raises:
        TableError: it is not such a table, or not the one that its own digest was made for; names the file.
    """
    path = Path(path)
    with _readable(path):
        table = pq.read_table(path)
    return validate(table, schema, str(path))


def read_batches(path: str | Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a Parquet file as `schema` in parts of `BATCH_ROWS` rows; raises as `read_table` does.

    `schema` may have some of the table's columns alone.
    """
    path = Path(path)
    with _readable(path):
        file = pq.ParquetFile(path)
    with file:
        present = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, columns=present):
            yield validate(pa.Table.from_batches([batch]), schema, str(path))


@contextmanager
def _readable(path: Path) -> Iterator[None]:
    """Turns what goes wrong with a file inside into a `TableError`, and then compares its pages with their digest."""
    try:
        yield
        version = json.loads((pq.read_metadata(path).metadata or {}).get(VERSION.encode(), b"0"))
    except FileNotFoundError:
        raise TableError(f"{path}: no such file") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: not a readable Parquet file: {error}") from None
    if version > SCHEMA_VERSION:
        raise TableError(
            f"{path}: its schema is of version {version}, and this code reads versions up to {SCHEMA_VERSION}: it was "
            "written by a newer one"
        )
    try:
        check_pages(path)
    except ContentError as error:
        raise TableError(str(error)) from None


def read_metadata(file: str | Path | BinaryIO) -> dict[str, Any]:
    """The key-value metadata that `write_table` stored, without Arrow's entry, the digest and the version."""
    entries = {key.decode(): value for key, value in (pq.read_metadata(file).metadata or {}).items()}
    return {key: json.loads(value) for key, value in entries.items() if key not in ("ARROW:schema", CLAIM, VERSION)}


@dataclass
class StageSummary:
    """What a stage has to say about its run, as a typed output, so that a cached stage still shows everything.

    Attributes:
        stage: name of the stage; a stage that runs several times adds what tells them apart (`sourcing: gsm8k`).
        started_at: when the work began (UTC).
        seconds: wall time of the work.
        headline: one sentence for people.
        facts: all else that it recorded, for the report and for programs: JSON values.
        run: the run that it was made in (`tasks.platform.run_id`); in any other it came from the cache.
        image: the container image that it was made in (`tasks.provenance.image`).
        cores, gpus: what it held for `seconds` (`tasks.machine`).
    """

    stage: str
    started_at: datetime
    seconds: float
    headline: str
    facts: dict[str, Any] = field(default_factory=dict)
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
