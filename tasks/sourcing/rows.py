"""Reads the rows in files: JSON Lines, JSON, CSV and Parquet.

JSON integers are exact, and the cells of a CSV file are text as it is written: `007` stays `007`, and `None` is a word.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import PurePosixPath
from typing import IO, Any

import pyarrow.parquet as pq

from tasks.sourcing.compression import decompressed, format_of
from tasks.sourcing.files import File, Item, Malformed

BATCH = 1024
"""Rows of a Parquet file that are read at a time."""

LONGEST_CELL = 2**31 - 1
"""Characters of a cell of a CSV file, at most; the module `csv` would stop at 131,072."""


def jsonl_rows(file: File) -> Iterator[Item]:
    """Yield the JSON objects of a file of lines, compressed or not."""
    with _opened(file) as stream:
        yield from _lines(stream)


def json_rows(file: File, field: str | None = None) -> Iterator[Item]:
    """Yield the objects of a JSON file: of its list, of its lines, or the one that it is.

    A list within the file's list is a row too, with its places as columns, `0`, `1` and so on, as the hub's library
    reads it: Open-Reasoner-Zero holds pairs of turns.

    Args:
        file: the file, compressed or not.
        field: the key of the file's object under which the list is; None: the file is the list.

    Raises:
        ValueError: the file is no JSON, or has no such key.
    """
    with _opened(file) as stream:
        first = next((line for line in stream if line.strip()), b"")
        if field is None and (not first or isinstance(row := _row(first), dict)):
            yield from [row] if first else []
            yield from _lines(stream)
            return
        content = _json(first + stream.read())
    if field is not None:
        if not isinstance(content, dict) or field not in content:
            raise ValueError(f"it is no JSON object with the key {field!r}")
        content = content[field]
    for row in content if isinstance(content, list) else [content]:
        if isinstance(row, list) and row:
            yield {str(place): value for place, value in enumerate(row)}
        else:
            yield row if isinstance(row, dict) else _no_object(row, json.dumps(row))


def csv_rows(file: File, delimiter: str = ",", names: Sequence[str] | None = None) -> Iterator[Item]:
    """Yield the rows of a CSV file, whose cells are text.

    Args:
        file: the file, compressed or not, in UTF-8.
        delimiter: the character between cells.
        names: the names of the columns; None: they are the file's first row.

    Raises:
        ValueError: a name occurs twice; cells are separated by semicolons; the last quotation mark is not closed.
    """
    csv.field_size_limit(LONGEST_CELL)
    with _opened(file) as stream:
        # Bytes that are no UTF-8 cost their row: they become text that is not valid Unicode.
        text = io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
        rows = csv.reader(text, delimiter=delimiter, strict=True)
        names = _unique_names(next(rows, []) if names is None else names)
        if len(names) == 1 and delimiter == "," and ";" in names[0]:
            raise ValueError(f"its cells must be separated by commas, and its first line is {names[0]!r}")
        while True:
            try:
                cells = next(rows)
            except StopIteration:
                return
            except csv.Error as error:
                if "end of data" in str(error):
                    raise ValueError("a quotation mark is not closed before the end of the file") from None
                yield Malformed(f"not valid CSV: {error} in line {rows.line_num}", "not valid CSV", "")
                continue
            if not cells:
                yield None
            elif len(cells) != len(names):
                reason = f"{len(cells)} cells under {len(names)} columns"
                yield Malformed(reason, "another number of cells than columns", delimiter.join(cells))
            else:
                yield dict(zip(names, cells, strict=True))


def parquet_rows(file: File, columns: Iterable[str] | None = None) -> Iterator[Item]:
    """Yield the rows of a Parquet file, with `columns` alone where it has all of them.

    A file that lacks one is read with all its columns, so that an error can list those that it has.
    """
    with file.filesystem.open(file.path, "rb") as stream, pq.ParquetFile(stream) as table:
        names = _unique_names(table.schema_arrow.names)
        for batch in table.iter_batches(BATCH, columns=columns_to_read(columns, names)):
            yield from batch.to_pylist()


READERS: dict[str, Callable[..., Iterator[Item]]] = {
    ".jsonl": jsonl_rows,
    ".json": json_rows,
    ".parquet": parquet_rows,
    ".csv": csv_rows,
}
"""The readers of files, by the ending of their names."""


def reader_of(path: str, columns: Iterable[str] | None) -> Callable[[File], Iterator[Item]] | None:
    """Return the reader of a file by the ending of its name, of `columns` alone where that is faster; None: unknown."""
    ending = PurePosixPath(path.rpartition(".")[0] if format_of(path) else path).suffix.lower()
    reader = READERS.get(ending)
    return partial(reader, columns=columns) if reader is parquet_rows else reader


def columns_to_read(columns: Iterable[str] | None, available: Iterable[str]) -> list[str] | None:
    """Return the columns to read of a file, sorted; None reads all, as where one of `columns` is not available."""
    wanted = None if columns is None else sorted(set(columns))
    return wanted if wanted is not None and set(wanted) <= set(available) else None


@contextmanager
def _opened(file: File) -> Iterator[IO[bytes]]:
    with file.filesystem.open(file.path, "rb") as stream:
        yield decompressed(stream, file.path)


def _lines(stream: Iterable[bytes]) -> Iterator[Item]:
    for line in stream:
        yield _row(line) if line.strip() else None


def _row(line: bytes) -> Item:
    text = line.decode(errors="replace").strip()
    try:
        row = _json(line)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not valid JSON: {error}", "not valid JSON", text)
    return row if isinstance(row, dict) else _no_object(row, text)


def _json(text: bytes) -> Any:
    return json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)


def _no_object(value: Any, text: str) -> Malformed:
    reason = f"a JSON {type(value).__name__}, not an object"
    return Malformed(reason, reason, text)


def _unique_names(names: Sequence[str]) -> Sequence[str]:
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"column {twice[0]!r} occurs twice")
    return names


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
