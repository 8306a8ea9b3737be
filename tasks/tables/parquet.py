"""Writes and reads tables as Parquet files under their schemas (`tasks.tables.schemas`).

Every table is one Parquet file. Tables are validated when they are written (`write_table`) and when they are read
(`read_table`), so that a malformed file gives a clear error at the boundary of a stage.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from tasks.config.nested_values import changed
from tasks.failures import MistakeError
from tasks.tables.content_digest import CLAIM, ContentError, check_pages, write_parquet
from tasks.tables.row_groups import ROW_GROUP
from tasks.tables.schemas import (
    COMPARED,
    LEDGER,
    MESSAGES,
    MIXTURE,
    PROMPTS,
    RESPONSES,
    ROLLOUTS,
    SET_ASIDE,
    canonical_json,
)

BATCH_ROWS = 4096
"""Number of rows that `read_batches` reads at a time."""

PART_BYTES = 64 << 20
"""Bytes of the parts of `take_rows`."""

SCHEMA_VERSION = 2
"""The version of all schemas, in the metadata of every table. Increase it for changes that older code cannot read."""

VERSION = "schema_version"
"""Key of the `SCHEMA_VERSION` in a table's metadata."""


class TableError(MistakeError):
    """A table does not match its schema. The message names the file, the column or row, and the value."""


def storable(text: str) -> str:
    """Return `text` in a form that UTF-8 can encode: an unpaired surrogate, which a model may write, is escaped."""
    return text.encode(errors="backslashreplace").decode()


def build_table(rows: Iterable[Mapping[str, Any]], schema: pa.Schema, where: str) -> pa.Table:
    """Return the rows as a table of `schema`.

    Args:
        rows: values by column. Nullable columns may be missing.
        schema: the columns.
        where: the name of the table in error messages.

    Raises:
        TableError: a value does not match the schema. The message names the column.
    """
    listed = list(rows)
    columns = []
    for column in schema:
        name = column.name  # looking it up in each row takes longer than the row
        try:
            values = [row.get(name) for row in listed] if column.nullable else [row[name] for row in listed]
            columns.append(_make_array(values, column.type))
        except KeyError:
            raise TableError(f"{where}: a row lacks the column {name!r}") from None
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise TableError(f"{where}: column {name!r} must be {column.type}: {error}") from None
    return validate(pa.table(columns, names=schema.names), schema, where)


def _make_array(values: list[Any], kind: pa.DataType) -> pa.Array:
    try:
        return _make_messages(values) if kind == MESSAGES else pa.array(values, type=kind)
    except UnicodeEncodeError:  # rare, so texts are only searched for surrogates then
        return pa.array([_storable_within(value) for value in values], type=kind)


def _make_messages(values: list[Any]) -> pa.Array:
    """Return an array of `MESSAGES`. Arrow converts the texts of many messages three times as fast as the messages."""
    try:
        ends = pa.array(np.cumsum([0, *map(len, values)]), pa.int32())
        turns = list(chain.from_iterable(values))
        texts = [pa.array([turn.get(field.name) for turn in turns], field.type) for field in MESSAGES.value_type]
    except (TypeError, AttributeError):  # they are not messages
        return pa.array(values, type=MESSAGES)
    return pa.ListArray.from_arrays(ends, pa.StructArray.from_arrays(texts, fields=list(MESSAGES.value_type)), MESSAGES)


def _storable_within(value: Any) -> Any:
    """Return a value of a table with all its texts made `storable`."""
    return changed(value, lambda part: storable(part) if isinstance(part, str) else part)


def validate(table: pa.Table, schema: pa.Schema, where: str) -> pa.Table:
    """Return the table with the columns of `schema`, in its order and types, and with the table's metadata.

    A nullable column that an older version of the schema did not have is filled with nulls.

    Raises:
        TableError: a column is missing or has another type, or a column that is not nullable contains null.
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


def add_user_columns(schema: pa.Schema, *others: pa.Schema) -> pa.Schema:
    """Return `schema` with the columns of `others` that were added by a user and are not in `tasks.tables.schemas`.

    They are nullable, because not every table has them.

    Raises:
        TableError: columns with the same name have different types.
    """
    tables = (schema, PROMPTS, SET_ASIDE, RESPONSES, ROLLOUTS, COMPARED, MIXTURE, LEDGER)
    ours = {name for table in tables for name in table.names}
    added: dict[str, pa.DataType] = {}
    for column in (column for other in others for column in other if column.name not in ours):
        if added.setdefault(column.name, column.type) != column.type:
            raise TableError(f"column {column.name!r} is {added[column.name]} in one table, {column.type} in another")
    return pa.schema([*schema, *(pa.field(name, kind) for name, kind in added.items())])


def read_columns(path: str | Path) -> pa.Schema:
    """Return the columns of a Parquet file.

    Raises:
        TableError: the file is missing or is not a Parquet file.
    """
    with _convert_read_errors(Path(path)):
        return pq.read_schema(path)


def write_table(
    path: str | Path, table: pa.Table, schema: pa.Schema, metadata: Mapping[str, Any] | None = None
) -> Path:
    """Write `table` to one Parquet file with its digest. Equal tables and metadata give equal bytes.

    Values of `metadata` are stored as JSON in the file's key-value metadata (see `read_metadata`).
    """
    return write_batches(path, [table], schema, metadata)


def write_batches(
    path: str | Path,
    tables: Iterable[pa.Table],
    schema: pa.Schema,
    metadata: Mapping[str, Any] | None = None,
    last: Callable[[], Mapping[str, Any]] = dict,
) -> Path:
    """Write a table that is given in parts to one Parquet file. Equal rows give equal bytes, whatever the parts are.

    Args:
        path: path of the file.
        tables: the parts, in order.
        schema: the columns.
        metadata: JSON values for the file's metadata, as for `write_table`.
        last: returns further metadata, and is called after all parts were consumed.
    """
    path = Path(path)
    checked = (validate(table, schema, str(path)) for table in tables)
    entries = _encode_entries({**(metadata or {}), VERSION: SCHEMA_VERSION})
    write_parquet(path, checked, schema.with_metadata(entries), lambda: _encode_entries(last()))
    return path


def _encode_entries(metadata: Mapping[str, Any]) -> dict[str, str]:
    return {key: canonical_json(value) for key, value in sorted(metadata.items())}


def read_table(path: str | Path, schema: pa.Schema) -> pa.Table:
    """Read a Parquet file as `schema`.

    Raises:
        TableError: the file does not contain such a table, or its rows do not match the digest in its footer.
    """
    path = Path(path)
    with _convert_read_errors(path):
        table = pq.read_table(path)
    return validate(table, schema, str(path))


def read_batches(path: str | Path, schema: pa.Schema) -> Iterator[pa.Table]:
    """Read a Parquet file as `schema` in parts of `BATCH_ROWS` rows.

    `schema` may contain only some of the table's columns.

    Raises:
        TableError: as `read_table` raises it.
    """
    path = Path(path)
    with _convert_read_errors(path):
        file = pq.ParquetFile(path)
    with file:
        present = [name for name in schema.names if name in file.schema_arrow.names]
        for batch in file.iter_batches(BATCH_ROWS, columns=present):
            yield validate(pa.Table.from_batches([batch]), schema, str(path))


def mapped(tables: Iterable[pa.Table], schema: pa.Schema) -> pa.Table:
    """Return a table that is given in parts, with its rows in a temporary file instead of memory.

    The file is mapped, so that the system reads its pages as they are used and drops them if memory is short. It has no
    name, and ends with the table.

    Args:
        tables: the parts, in order.
        schema: the columns of each part.
    """
    with tempfile.NamedTemporaryFile(suffix=".arrow") as file:
        with pa.OSFile(file.name, "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
            for table in tables:
                writer.write_table(table.select(schema.names).cast(schema), max_chunksize=BATCH_ROWS)
        return pa.ipc.open_file(pa.memory_map(file.name)).read_all()


def copy_head(table: pa.Table, rows: int) -> pa.Table:
    """Return a copy of the first `rows` rows. A slice would keep the memory of all rows."""
    return table.take(pa.array(np.arange(min(rows, table.num_rows))))


def take_rows(table: pa.Table, rows: NDArray[np.int64]) -> Iterator[pa.Table]:
    """Yield the `rows` of a table, which may be a `mapped` one, in parts of about `PART_BYTES`.

    Only a part is in memory. `pa.Table.take` copies the whole table first if it has lists.
    """
    batches = table.to_batches()
    starts = np.cumsum([0, *(batch.num_rows for batch in batches)])
    size = min(ROW_GROUP, max(1, PART_BYTES * table.num_rows // max(table.nbytes, 1)))
    for first in range(0, len(rows), size):
        wanted = rows[first : first + size]
        order = np.argsort(wanted, kind="stable")
        bounds = np.searchsorted(wanted[order], starts)
        pieces = [
            batch.take(pa.array(wanted[order[low:high]] - start))
            for batch, start, low, high in zip(batches, starts, bounds, bounds[1:], strict=False)
            if low < high
        ]
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        yield pa.Table.from_batches(pieces).combine_chunks().take(pa.array(ranks))


@contextmanager
def _convert_read_errors(path: Path) -> Iterator[None]:
    """Convert errors of reading the file to `TableError`, and then compare its pages with their digest."""
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
    """Return the key-value metadata that `write_table` stored, except Arrow's entry, the digest and the version."""
    entries = {key.decode(): value for key, value in (pq.read_metadata(file).metadata or {}).items()}
    return {key: json.loads(value) for key, value in entries.items() if key not in ("ARROW:schema", CLAIM, VERSION)}
