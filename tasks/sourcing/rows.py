"""Reads the rows of JSON Lines, JSON, CSV and Parquet files.

JSON numbers keep their digits, and CSV cells are read as text: `007` stays `007`, and `None` is a word.
"""

from __future__ import annotations

import json
from codecs import BOM_UTF8
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import PurePosixPath
from typing import Any

import pyarrow.parquet as pq

from tasks.sourcing.compression import find_format
from tasks.sourcing.contents import open_text
from tasks.sourcing.csv_files import make_unique_names, read_csv
from tasks.sourcing.files import File, Item, Malformed
from tasks.sourcing.numbers import convert_batch, parse_float
from tasks.sourcing.values import build_object

BATCH = 1024
"""Number of rows of a Parquet file that are read at a time."""

NOT_JSON = "not valid JSON"
"""The category of lines that are not JSON."""

READ_WHOLE = (
    "a list, or objects of several lines, are read by {kind: huggingface, files: PATH} if the name ends in .json"
)
"""Advice about a file of JSON that is not JSON Lines."""


def read_jsonl(file: File) -> Iterator[Item]:
    """Yield the JSON objects of a JSON Lines file, compressed or not.

    Raises:
        ValueError: the first line is only the start of a list or of an object, so the lines are not the rows.
    """
    with open_text(file) as stream:
        lines = _parse_lines(stream)
        for item in lines:
            if isinstance(item, Malformed):
                _check_first(item)
            yield item
            if item is not None:
                break
        yield from lines


def read_json(file: File, field: str | None = None) -> Iterator[Item]:
    """Yield the objects of a JSON file, which is a list, JSON lines, or objects one after another.

    A list within the file's list is also a row, with its positions as columns, `0`, `1` and so on, as in the `datasets`
    library. Open-Reasoner-Zero contains pairs of turns in this format.

    Args:
        file: the file, compressed or not.
        field: the key of the list in the file's object. If None, the file itself is the list.

    Raises:
        ValueError: the file is not JSON, or has no such key.
    """
    with open_text(file) as stream:
        first = next((line for line in stream if line.strip()), b"")
        if field is None and (not first or isinstance(row := _parse_row(first), dict)):
            yield from [row] if first else []
            yield from _parse_lines(stream)
            return
        values = _parse_values(_decode(first + stream.read()))
    content = values if len(values) > 1 else values[0]
    if field is not None:
        if not isinstance(content, dict) or field not in content:
            raise ValueError(f"it is not a JSON object with the key {field!r}")
        content = content[field]
    for row in content if isinstance(content, list) else [content]:
        if isinstance(row, list) and row:
            yield {str(place): value for place, value in enumerate(row)}
        else:
            yield row if isinstance(row, dict) else _make_malformed(row, json.dumps(row))


def read_parquet(file: File, columns: Iterable[str] | None = None) -> Iterator[Item]:
    """Yield the rows of a Parquet file, with only `columns` if it has all of them.

    If one is missing, all columns are read, so that an error can list the available ones.
    """
    with file.filesystem.open(file.path, "rb") as stream, pq.ParquetFile(stream) as table:
        names = make_unique_names(table.schema_arrow.names)
        for batch in table.iter_batches(BATCH, columns=select_columns(columns, names)):
            yield from convert_batch(batch)


DECODER = json.JSONDecoder(parse_float=parse_float, object_pairs_hook=build_object)
"""The decoder of JSON. It accepts NaN and infinities, which Python writes; a row is dropped if it needs one of them."""

JSON_SPACE = " \t\n\r"
"""White space around a value of JSON."""

READERS: dict[str, Callable[..., Iterator[Item]]] = {
    ".jsonl": read_jsonl,
    ".json": read_json,
    ".parquet": read_parquet,
    ".csv": read_csv,
    ".ndjson": read_jsonl,
    ".tsv": partial(read_csv, delimiter="\t"),
}
"""The readers of files, by file extension."""


def choose_csv_reader(path: str) -> Callable[[File], Iterator[Item]]:
    """Return the reader of a CSV file, whatever its extension: cells of a .tsv are separated by tabs."""
    ending = PurePosixPath(path.rpartition(".")[0] if find_format(path) else path).suffix.lower()
    return READERS[".tsv" if ending == ".tsv" else ".csv"]


def choose_reader(path: str, columns: Iterable[str] | None) -> Callable[[File], Iterator[Item]] | None:
    """Return the reader for a file's extension, or None if it is unknown. It reads only `columns` if that is faster."""
    ending = PurePosixPath(path.rpartition(".")[0] if find_format(path) else path).suffix.lower()
    reader = READERS.get(ending)
    return partial(reader, columns=columns) if reader is read_parquet else reader


def select_columns(columns: Iterable[str] | None, available: Iterable[str]) -> list[str] | None:
    """Return the columns to read, sorted, or None for all, for example if one of `columns` is not available."""
    wanted = None if columns is None else sorted(set(columns))
    return wanted if wanted is not None and set(wanted) <= set(available) else None


def _parse_lines(stream: Iterable[bytes]) -> Iterator[Item]:
    for line in stream:
        yield _parse_row(line) if line.strip() else None


def _parse_row(line: bytes) -> Item:
    try:
        text = _decode(line).strip(JSON_SPACE)
        row, end = DECODER.raw_decode(text)  # without the searches for white space of `decode`
        if end < len(text):
            raise json.JSONDecodeError("Extra data", text, end)
    except (ValueError, RecursionError) as error:
        return Malformed(f"{NOT_JSON}: {error}", NOT_JSON, _format_line(line))
    return row if isinstance(row, dict) else _make_malformed(row, _format_line(line))


def _format_line(line: bytes) -> str:
    return line.removeprefix(BOM_UTF8).decode(errors="replace").strip()


def _check_first(line: Malformed) -> None:
    """Raise `ValueError` if the first line of a file is only the start of JSON: later lines may look like rows."""
    if line.category == NOT_JSON and (line.value.startswith("[") or line.value == "{"):
        raise ValueError(f"its first line, {line.value[:20]!r}, is only the start of JSON; {READ_WHOLE}")


def _decode(content: bytes) -> str:
    return content.removeprefix(BOM_UTF8).decode(errors="surrogatepass")


def _parse_values(text: str) -> list[Any]:
    """Return the JSON values of a text, which contains one or several, with or without white space between them."""
    values, end = [], _skip_space(text, 0)
    while end < len(text):
        value, end = DECODER.raw_decode(text, end)
        values.append(value)
        end = _skip_space(text, end)
    return values


def _skip_space(text: str, start: int) -> int:
    while text[start : start + 1].isspace():
        start += 1
    return start


def _make_malformed(value: Any, text: str) -> Malformed:
    reason = f"a JSON {type(value).__name__}, not an object"
    return Malformed(reason, reason, text)
