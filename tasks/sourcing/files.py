"""Opens the files of a source through fsspec and reads the rows in them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import fsspec
import fsspec.utils
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config import SpecError
from tasks.sourcing.loader_specs import HuggingFaceLoader, JsonlLoader, Loader, ParquetLoader, Paths
from tasks.tables.content_digest import file_digest

BATCH = 1024
"""Rows of a Parquet file that are read at a time."""


@dataclass(frozen=True)
class Malformed:
    """An entry of a source that holds no row.

    Attributes:
        reason: the fault of this entry, for people.
        category: the reason without what is particular to the entry; rows are counted by it.
        value: its text.
    """

    reason: str
    category: str
    value: str


Item = dict[str, Any] | Malformed | None
"""An entry of a source: a row by column, one that is malformed, or None for one that is passed over (a blank line)."""


@dataclass(frozen=True)
class File:
    """A file that fsspec can open: its file system and its path there."""

    filesystem: fsspec.AbstractFileSystem
    path: str

    @property
    def is_local(self) -> bool:
        """True for a file of this machine's file system."""
        return isinstance(self.filesystem, fsspec.get_filesystem_class("file"))

    def digest(self) -> str:
        """Return the digest of a local file's content, or the checksum that a remote file system reports."""
        return file_digest(self.path) if self.is_local else str(self.filesystem.checksum(self.path))


def named_files(loader: Loader, where: str) -> list[File]:
    """Return the files that a loader names, in that order, those of a glob sorted; no files for a generator.

    Raises:
        SpecError: a path or glob without files; `where` begins the message.
    """
    match loader:
        case JsonlLoader(path=paths) | ParquetLoader(path=paths):
            field = f"{where}.path"
        case HuggingFaceLoader(files=paths) if paths is not None:
            field = f"{where}.files"
        case _:
            return []
    listed: Paths = [paths] if isinstance(paths, str) else paths
    files = [file for path in listed for file in _expand(path, field)]
    if not files:
        raise SpecError(f"{field}: must name at least one file")
    return files


def jsonl(file: File) -> Iterator[Item]:
    """Yield the JSON objects of a file of lines, compressed or not."""
    compression = fsspec.utils.infer_compression(file.path)
    with file.filesystem.open(file.path, "rb", compression=compression) as stream:
        for line in stream:
            yield _parse(line) if line.strip() else None


def parquet(file: File, columns: Iterable[str] | None) -> Iterator[Item]:
    """Yield the rows of a Parquet file, with `columns` alone where it has all of them.

    A file that lacks one is read with all its columns, so that an error can list those that it has.
    """
    with file.filesystem.open(file.path, "rb") as stream, pq.ParquetFile(stream) as table:
        names = table.schema_arrow.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise pa.ArrowInvalid(f"column {twice[0]!r} occurs twice")
        wanted = columns_to_read(columns, names)
        for batch in table.iter_batches(BATCH, columns=wanted):
            yield from batch.to_pylist()


def columns_to_read(columns: Iterable[str] | None, available: Iterable[str]) -> list[str] | None:
    """Return the columns to read of a file, sorted; None reads all, as where one of `columns` is not available."""
    wanted = None if columns is None else sorted(set(columns))
    return wanted if wanted is not None and set(wanted) <= set(available) else None


def _expand(path: str, field: str) -> list[File]:
    try:
        filesystem, root = fsspec.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SpecError(f"{field} = {path!r}: not a path that can be opened: {error}") from None
    if "*" in root or "?" in root or "[" in root:
        matches = sorted(match for match in filesystem.glob(root) if filesystem.isfile(match))
        if not matches:
            raise SpecError(f"{field} = {path!r}: no file matches")
        return [File(filesystem, match) for match in matches]
    if not filesystem.exists(root):
        raise SpecError(f"{field} = {path!r}: no such file")
    if not filesystem.isfile(root):
        raise SpecError(f"{field} = {path!r}: not a file; a folder's files are named by a glob such as {path}/*")
    return [File(filesystem, root)]


def _parse(line: bytes) -> Item:
    try:
        row = json.loads(line, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        return Malformed(f"not valid JSON: {error}", "not valid JSON", _text(line))
    if not isinstance(row, dict):
        reason = f"a JSON {type(row).__name__}, not an object"
        return Malformed(reason, reason, _text(line))
    return row


def _text(line: bytes) -> str:
    return line.decode(errors="replace").strip()


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    row = dict(pairs)
    if len(row) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
