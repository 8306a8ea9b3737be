"""Reads the rows of JSON Lines, JSON, CSV and Parquet files.

JSON integers are exact, and CSV cells are read as text: `007` stays `007`, and `None` is a word.
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
"""Number of rows of a Parquet file that are read at a time."""

LONGEST_CELL = 2**31 - 1
"""Maximum number of characters of a CSV cell. The default of the module `csv` is 131,072."""


def jsonl_rows(file: File) -> Iterator[Item]:
    """Yield the JSON objects of a JSON Lines file, compressed or not."""
    with _opened(file) as stream:
        yield from _lines(stream)


def json_rows(file: File, field: str | None = None) -> Iterator[Item]:
    """Yield the objects of a JSON file, which is a list, JSON lines or a single object.

    A list within the file's list is also a row, with its positions as columns, `0`, `1` and so on, as in the `datasets`
    library. Open-Reasoner-Zero contains pairs of turns in this format.

    Args:
        file: the file, compressed or not.
        field: the key of the list in the file's object. If None, the file itself is the list.

    Raises:
        ValueError: the file is not JSON, or has no such key.
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
            raise ValueError(f"it is not a JSON object with the key {field!r}")
        content = content[field]
    for row in content if isinstance(content, list) else [content]:
        if isinstance(row, list) and row:
            yield {str(place): value for place, value in enumerate(row)}
        else:
            yield row if isinstance(row, dict) else _no_object(row, json.dumps(row))


def csv_rows(file: File, delimiter: str = ",", names: Sequence[str] | None = None) -> Iterator[Item]:
    """Yield the rows of a CSV file, with cells as text.

    Args:
        file: the file, compressed or not, in UTF-8.
        delimiter: the character between cells.
        names: the names of the columns. If None, the first row of the file contains them.

    Raises:
        ValueError: a name occurs twice, cells are separated by semicolons, or the last quotation mark is not closed.
    """
    csv.field_size_limit(LONGEST_CELL)
    with _opened(file) as stream:
        # A row with invalid UTF-8 is dropped later: its text is not valid Unicode.
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
    """Yield the rows of a Parquet file, with only `columns` if it has all of them.

    If one is missing, all columns are read, so that an error can list the available ones.
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
"""The readers of files, by file extension."""


def reader_of(path: str, columns: Iterable[str] | None) -> Callable[[File], Iterator[Item]] | None:
    """Return the reader for a file's extension, or None if it is unknown. It reads only `columns` if that is faster."""
    ending = PurePosixPath(path.rpartition(".")[0] if format_of(path) else path).suffix.lower()
    reader = READERS.get(ending)
    return partial(reader, columns=columns) if reader is parquet_rows else reader


def columns_to_read(columns: Iterable[str] | None, available: Iterable[str]) -> list[str] | None:
    """Return the columns to read, sorted, or None for all, for example if one of `columns` is not available."""
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
    raise ValueError(f"{name} is not a JSON number")
