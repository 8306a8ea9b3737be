"""Where rows come from. A loader yields the rows of a source one by one, in an order that never changes.

Opening a source checks what can be known before its rows are read: that its files exist, that its data set is known,
and that the columns it maps are there. Each such mistake is one `SpecError`. A row that cannot be parsed is yielded
as `Malformed`, to be set aside by whoever reads on.
"""

from __future__ import annotations

import hashlib
import heapq
import importlib.metadata
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import PurePosixPath
from typing import Any

import fsspec
import fsspec.utils
import pyarrow as pa
import pyarrow.parquet as pq

from tasks.config import SpecError, close_match
from tasks.contents import file_digest
from tasks.schemas import canonical_json
from tasks.sourcing.generators import TooFewPromptsError, functions, instructions, topics
from tasks.sourcing.spec import (
    FunctionsLoader,
    HuggingFaceLoader,
    InstructionsLoader,
    JsonlLoader,
    ParquetLoader,
    Paths,
    ReasoningGymLoader,
    SourceBatch,
    SourceSpec,
    TopicsLoader,
)
from tasks.verifiers.functions import function_digest

PEEK = 100
"""How many rows are looked at to learn which columns a source has."""

BATCH = 1024
SMALL_BYTES = 32 * 2**20
FORMATS = {".jsonl": "json", ".json": "json", ".parquet": "parquet", ".csv": "csv"}


@dataclass(frozen=True)
class Row:
    """A row as its source has it. `index` counts from 0, through all files of the source."""

    index: int
    columns: dict[str, Any]


@dataclass(frozen=True)
class Malformed:
    """A row that is no JSON object: why, and its text."""

    index: int
    reason: str
    value: str


@dataclass(frozen=True)
class File:
    """A file that fsspec can open."""

    filesystem: fsspec.AbstractFileSystem
    path: str


def open_rows(source: SourceSpec) -> Iterator[Row | Malformed]:
    """The rows of `source`, its `limit` applied; raises `SpecError` where the source is not what its spec says.

    Without a limit, memory holds a batch of rows, whatever the size of the source; with one, it holds `limit` rows.
    """
    rows = _numbered(_checked_stream(source))
    if source.limit is None:
        return rows
    return iter(sorted(sample(rows, source.limit, source.seed), key=lambda row: row.index))


def check(source: SourceSpec) -> None:
    """Open `source` and read its first rows; raises the `SpecError` that `open_rows` would."""
    next(_checked_stream(source), None)


def sample(rows: Iterator[Row | Malformed], limit: int, seed: int) -> list[Row | Malformed]:
    """`limit` of the rows, those whose hash of (seed, index) is smallest: even, repeatable, stable as files grow."""

    def rank(row: Row | Malformed) -> bytes:
        return hashlib.sha256(f"{seed}:{row.index}".encode()).digest()

    return heapq.nsmallest(limit, rows, key=rank)


def fingerprint(source: SourceSpec) -> str:
    """A digest that changes when what `source` reads changes, so that a cache keyed by it misses.

    Local files count by their content, remote ones by what their filesystem reports as checksum (size and modification
    time where it has nothing better), hub data sets by their pinned revision, reasoning-gym by its version, reward
    functions by their file. Our own generators depend on nothing outside the code and the spec.
    """
    loader = source.loader
    reads: list[Any] = [loader.model_dump(mode="json")]
    if isinstance(loader, ReasoningGymLoader):
        reads.append(importlib.metadata.version("reasoning-gym"))
    for file in files_of(source):
        reads.append(_content_digest(file))
    for reward in source.rewards:
        if reward.function is not None:
            reads.append(function_digest(reward.function))
    return hashlib.sha256(canonical_json(reads).encode()).hexdigest()


def batches(sources: Sequence[SourceSpec]) -> list[SourceBatch]:
    """The sources as tasks read them: small ones together, since a pod takes longer to start than they to be read.

    Small is a generator, and files of up to `SMALL_BYTES` together; a data set of the hub never is.
    """
    small = [source for source in sources if _is_small(source)]
    alone = [[source] for source in sources if source not in small]
    return [
        SourceBatch(sources=each, contents=[fingerprint(source) for source in each]) for each in (small, *alone) if each
    ]


def _is_small(source: SourceSpec) -> bool:
    if isinstance(source.loader, HuggingFaceLoader) and source.loader.dataset is not None:
        return False
    return sum(file.filesystem.size(file.path) for file in files_of(source)) <= SMALL_BYTES


def is_local(file: File) -> bool:
    """Whether it lies on this machine."""
    return isinstance(file.filesystem, fsspec.get_filesystem_class("file"))


def _content_digest(file: File) -> str:
    if is_local(file):
        return file_digest(file.path)
    return str(file.filesystem.checksum(file.path))


# A stream yields what a row holds, or why it holds nothing, or None for a place that is no row (a blank line).
Item = dict[str, Any] | tuple[str, str] | None


def _numbered(stream: Iterator[Item]) -> Iterator[Row | Malformed]:
    for index, item in enumerate(stream):
        if isinstance(item, dict):
            yield Row(index, item)
        elif item is not None:
            yield Malformed(index, *item)


def _checked_stream(source: SourceSpec) -> Iterator[Item]:
    """The source's stream, after its columns have been found in its first rows; in those of each file, for files."""
    where = _at(source)
    match source.loader:
        case JsonlLoader():
            return _checked_files(source, _jsonl)
        case ParquetLoader():
            return _checked_files(source, _parquet)
        case HuggingFaceLoader() as loader:
            # A hub that cannot be reached is no mistake in the spec: its ConnectionError passes.
            errors = (ValueError, FileNotFoundError)
            stream = _guarded(_hugging_face(source, loader), f"{where}: {loader.dataset or loader.files}", errors)
        case ReasoningGymLoader() as loader:
            stream = _reasoning_gym(source, loader)
        case TopicsLoader() as loader:
            stream = _guarded(topics.generate(loader.size, source.seed), f"{where}.size", TooFewPromptsError)
        case InstructionsLoader() as loader:
            counts = (loader.min_constraints, loader.max_constraints)
            made = instructions.generate(loader.size, loader.constraints, *counts, source.seed)
            stream = _guarded(made, f"{where}.size", TooFewPromptsError)
        case FunctionsLoader() as loader:
            made = functions.generate(loader.size, loader.tests, source.seed)
            stream = _guarded(made, f"{where}.size", TooFewPromptsError)
    head = list(islice(stream, PEEK))
    _check_columns(source, head, "the data set")
    return chain(head, stream)


def _checked_files(source: SourceSpec, read: Callable[[File], Iterator[Item]]) -> Iterator[Item]:
    def guarded(file: File) -> Iterator[Item]:
        where = f"{_at(source)}.path: {file.path} cannot be read"
        return _guarded(read(file), where, (OSError, EOFError, pa.ArrowInvalid))

    files = files_of(source)
    for file in files:
        _check_columns(source, list(islice(guarded(file), PEEK)), file.path)
    return chain.from_iterable(map(guarded, files))


def _guarded(
    stream: Iterator[Item], where: str, errors: type[Exception] | tuple[type[Exception], ...]
) -> Iterator[Item]:
    """The stream, its `errors` turned into a `SpecError` that says where."""
    try:
        yield from stream
    except SpecError:
        raise
    except errors as error:
        raise SpecError(f"{where}: {error}") from error


def _check_columns(source: SourceSpec, head: Sequence[Item], where: str) -> None:
    rows = [item for item in head if isinstance(item, dict)]
    found = {column for row in rows for column in row}
    missing = [name for name in source.column_names() if name not in found]
    if rows and missing:
        hint = close_match(missing[0], found)
        raise SpecError(
            f"source {source.name!r}: columns: {where} has no column {missing[0]!r}{hint}; it has {sorted(found)}"
        )


def files_of(source: SourceSpec) -> list[File]:
    """The files that `source` names, in that order, a glob's sorted; raises `SpecError` for a path without files."""
    match source.loader:
        case JsonlLoader(path=paths) | ParquetLoader(path=paths):
            field = "path"
        case HuggingFaceLoader(files=paths) if paths is not None:
            field = "files"
        case _:
            return []
    listed: Paths = [paths] if isinstance(paths, str) else paths
    found = [file for path in listed for file in _expand(path, f"{_at(source)}.{field}")]
    if not found:
        raise SpecError(f"{_at(source)}.{field}: must name at least one file")
    return found


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


def _jsonl(file: File) -> Iterator[Item]:
    compression = fsspec.utils.infer_compression(file.path)
    with file.filesystem.open(file.path, "rb", compression=compression) as stream:
        for line in stream:
            yield _parse(line) if line.strip() else None


def _parse(line: bytes) -> Item:
    try:
        row = json.loads(line, parse_constant=_no_constant)
    except (ValueError, RecursionError) as error:
        return f"not valid JSON: {error}", line.decode(errors="replace").strip()
    if not isinstance(row, dict):
        return f"a JSON {type(row).__name__}, not an object", line.decode(errors="replace").strip()
    return row


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is no JSON number")


def _parquet(file: File) -> Iterator[Item]:
    with file.filesystem.open(file.path, "rb") as stream, pq.ParquetFile(stream) as table:
        for batch in table.iter_batches(BATCH):
            yield from batch.to_pylist()


def _hugging_face(source: SourceSpec, loader: HuggingFaceLoader) -> Iterator[Item]:
    import datasets
    from datasets.exceptions import DatasetGenerationError

    options: dict[str, Any]
    if loader.dataset is not None:
        name, options = loader.dataset, {"name": loader.config, "revision": loader.revision}
    else:
        files = [file.filesystem.unstrip_protocol(file.path) for file in files_of(source)]
        name, options = _format(source, files), {"data_files": {loader.split: files}}
    try:
        with _torch_unseen():
            yield from datasets.load_dataset(name, split=loader.split, streaming=True, **options)
    except DatasetGenerationError as error:
        raise ValueError(f"{error}: {error.__cause__}") from error


@contextmanager
def _torch_unseen() -> Iterator[None]:
    """Streaming imports torch wherever it is installed, for data loaders that a data stage has none of."""
    from datasets import config

    before, config.TORCH_AVAILABLE = config.TORCH_AVAILABLE, "torch" in sys.modules
    try:
        yield
    finally:
        config.TORCH_AVAILABLE = before


def _format(source: SourceSpec, files: Sequence[str]) -> str:
    """The builder of the `datasets` library that reads all these files."""
    endings = sorted({PurePosixPath(file).suffix for file in files})
    builders = {FORMATS.get(ending) for ending in endings}
    if len(builders) > 1 or None in builders:
        raise SpecError(
            f"{_at(source)}.files: must all be of one format among {', '.join(FORMATS)}; found {', '.join(endings)}"
        )
    return FORMATS[endings[0]]


def _reasoning_gym(source: SourceSpec, loader: ReasoningGymLoader) -> Iterator[Item]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if loader.dataset not in DATASETS:
        hint = close_match(loader.dataset, DATASETS)
        raise SpecError(f"{_at(source)}.dataset = {loader.dataset!r}: reasoning-gym has no such data set{hint}")
    settings: dict[str, Any] = dict(loader.config)
    try:
        rows = reasoning_gym.create_dataset(loader.dataset, size=loader.size, seed=source.seed, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise SpecError(f"{_at(source)}.config = {loader.config}: {error}") from None
    return (
        {**row, "prompt": row["question"], "ground_truth": row["answer"]}
        for row in map(rows.__getitem__, range(loader.size))
    )


def _at(source: SourceSpec) -> str:
    return f"source {source.name!r}: loader"
