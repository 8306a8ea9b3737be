"""Files of a source, wherever fsspec finds them, and the rows in them."""

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

# A stream yields what a row holds, or why it holds nothing, or None for a place that is no row (a blank line).
Item = dict[str, Any] | tuple[str, str] | None


@dataclass(frozen=True)
class File:
    """A file that fsspec can open."""

    filesystem: fsspec.AbstractFileSystem
    path: str

    @property
    def is_local(self) -> bool:
        """Whether it lies on this machine."""
        return isinstance(self.filesystem, fsspec.get_filesystem_class("file"))

    def digest(self) -> str:
        """Of its content where it is local, else what its file system reports as checksum."""
        return file_digest(self.path) if self.is_local else str(self.filesystem.checksum(self.path))


def named_files(loader: Loader, where: str) -> list[File]:
    """The files that a loader names, in that order, a glob's sorted; raises `SpecError` for a path without files."""
    match loader:
        case JsonlLoader(path=paths) | ParquetLoader(path=paths):
            field = f"{where}.path"
        case HuggingFaceLoader(files=paths) if paths is not None:
            field = f"{where}.files"
        case _:
            return []
    listed: Paths = [paths] if isinstance(paths, str) else paths
    found = [file for path in listed for file in _expand(path, field)]
    if not found:
        raise SpecError(f"{field}: must name at least one file")
    return found


def jsonl(file: File) -> Iterator[Item]:
    """The lines of a file, compressed or not."""
    compression = fsspec.utils.infer_compression(file.path)
    with file.filesystem.open(file.path, "rb", compression=compression) as stream:
        for line in stream:
            yield _parse(line) if line.strip() else None


def parquet(file: File, columns: Iterable[str] | None) -> Iterator[Item]:
    """The rows of a file: of `columns` alone where it has all of them, so that whoever misses one sees the others."""
    with file.filesystem.open(file.path, "rb") as stream, pq.ParquetFile(stream) as table:
        names = table.schema_arrow.names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise pa.ArrowInvalid(f"column {twice[0]!r} occurs twice")
        wanted = columns_to_read(columns, names)
        for batch in table.iter_batches(BATCH, columns=wanted):
            yield from batch.to_pylist()


def columns_to_read(columns: Iterable[str] | None, there: Iterable[str]) -> list[str] | None:
    """The columns to ask a file for; None: all."""
    wanted = None if columns is None else sorted(set(columns))
    return wanted if wanted is not None and set(wanted) <= set(there) else None


def _expand(path: str, field: str) -> list[File]:
    try:
        filesystem, root = fsspec.url_to_fs(path)
    except (ValueError, ImportError) as error:
        raise SpecError(f"{field} = {path!r}: not a path that can be opened: {error}") from None
    if "*" in root or "?" in root or "[" in root:
        matches = sorted(each for each in filesystem.glob(root) if filesystem.isfile(each))
        if not matches:
            raise SpecError(f"{field} = {path!r}: no file matches")
        return [File(filesystem, each) for each in matches]
    if not filesystem.exists(root):
        raise SpecError(f"{field} = {path!r}: no such file")
    if not filesystem.isfile(root):
        raise SpecError(f"{field} = {path!r}: not a file; a folder's files are named by a glob such as {path}/*")
    return [File(filesystem, root)]


def _parse(line: bytes) -> Item:
    try:
        row = json.loads(line, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}", line.decode(errors="replace").strip()
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}, not an object", line.decode(errors="replace").strip()
    return row


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        keys = [key for key, _ in pairs]
        raise ValueError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return found


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")
