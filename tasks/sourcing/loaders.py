"""Opens sources. A loader yields the rows of a source one by one, in a fixed order.

Opening a source checks what can be known before its rows are read: that its files exist, that its dataset is known, and
that it has the columns that its spec maps. Each such user error raises a `SpecError`. An entry that cannot be parsed is
yielded as `Malformed`, and `tasks.sourcing.prompts` drops it.
"""

from __future__ import annotations

import hashlib
import heapq
import importlib.metadata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, islice
from typing import Any

from tasks.config.cache_keys import result_options
from tasks.config.loading import SpecError, close_match
from tasks.sourcing import hub
from tasks.sourcing.compression import ERRORS
from tasks.sourcing.files import File, Item, Malformed, get_endings, list_files
from tasks.sourcing.generators import TooFewPromptsError, functions, guessing, instructions, topics
from tasks.sourcing.loader_specs import (
    CsvLoader,
    FunctionsLoader,
    GuessingLoader,
    HuggingFaceLoader,
    InstructionsLoader,
    JsonlLoader,
    ParquetLoader,
    ReasoningGymLoader,
    TopicsLoader,
)
from tasks.sourcing.reading import Reading
from tasks.sourcing.rows import READ_WHOLE, READERS, choose_csv_reader, choose_reader, read_jsonl, read_parquet
from tasks.sourcing.spec import SourceBatch, SourceSpec
from tasks.sourcing.transforms import apply_transform, compute_transform_digest
from tasks.sourcing.values import UnusableError, get_value, root, unwrap
from tasks.storage.sent_files import SentFileError
from tasks.tables.schemas import canonical_json, row_rank
from tasks.verifiers.custom import compute_own_digest
from tasks.verifiers.functions import compute_function_digest
from tasks.verifiers.scores import is_own

PEEK = 100
"""Rows that are read first, to find out which columns a source has."""

SMALL_BYTES = 32 * 2**20
"""Maximum total size in bytes of a source's files for it to share a task with other small sources."""


@dataclass(slots=True)
class Row:
    """A row as it is in its source.

    Attributes:
        index: its number in the source, from 0, counted through all files.
        content: its values by column, or the error if the entry is malformed.
    """

    index: int
    content: dict[str, Any] | Malformed


def open_rows(source: SourceSpec, reading: Reading | None = None) -> Iterator[Row]:
    """Yield the rows of `source`, with its `limit` applied.

    Without a limit, only a batch of rows is kept in memory, whatever the size of the source. With a limit, `limit` rows
    are kept.

    Args:
        source: the source.
        reading: Optional. The counts of what is read.

    Raises:
        SpecError: the source is not what its spec describes.
    """
    counts = reading or Reading()
    rows = _number_rows(_filter_stream(source, counts.count_source(_open_checked_stream(source, counts))), counts)
    if source.rows_to_read is None:
        return rows
    drawn = sample(rows, source.rows_to_read, source.seed)
    counts.set_sample(source.seed, [row.index for row in drawn])
    return iter(sorted(drawn, key=lambda row: row.index))


def check(source: SourceSpec) -> list[Row]:
    """Open `source` and return its first rows, up to `PEEK`.

    Raises:
        SpecError: any error of `open_rows`; also if the source is empty, or none of its first entries is a row.
    """
    head = list(islice(_open_checked_stream(source), PEEK))
    if not any(isinstance(item, dict) for item in head):
        faults = [item.reason for item in head if isinstance(item, Malformed)]
        why = f"none of its first {len(head)} entries is a row: {faults[0]}" if faults else "it contains no rows"
        raise SpecError(
            f"{_format_loader(source)}: "
            f"{', '.join(file.name for file in list_source_files(source)) or 'the source'}: {why}"
        )
    return list(_number_rows(_filter_stream(source, iter(head))))


def sample(rows: Iterator[Row], limit: int, seed: int) -> list[Row]:
    """Return a sample of `limit` rows: the first by their rank (`row_rank`).

    The sample is uniform and reproducible, and changes little when rows are appended to a file.
    """
    return heapq.nsmallest(limit, rows, key=lambda row: row_rank(seed, row.index))


def compute_fingerprint(source: SourceSpec) -> str:
    """Return a digest that changes when the content that `source` reads changes, for use in a cache key.

    Local files and their copies in storage count by content, not by location. Other remote files count by the checksum
    that their filesystem reports, by size and modification time if it has nothing better, and by content if it reports
    neither checksum nor time. Only the extensions of their names count, because they select the reader. Hub datasets
    count by commit, reasoning-gym by its version. The user's reward functions, transforms, environments and verifiers
    count by their file and the user's files that it imports.
    Built-in generators depend on nothing but the code and the spec.
    """
    loader = source.loader
    reads: list[Any] = [result_options(loader)]
    if isinstance(loader, ReasoningGymLoader):
        reads.append(importlib.metadata.version("reasoning-gym"))
    reads += [[get_endings(file.path), _compute_digest(source, file)] for file in list_source_files(source)]
    if source.transform is not None:
        reads.append(compute_transform_digest(source.transform, f"{_format_source(source)}: transform"))
    reads += [compute_function_digest(reward.function) for reward in source.rewards if reward.function is not None]
    if source.environment is not None:
        reads.append(compute_function_digest(source.environment.path, "environment"))
        reads += [compute_function_digest(path, "environment") for path in source.environment.code_of_the_user]
    reads += [compute_own_digest(verifier) for verifier in sorted(source.verifiers) if is_own(verifier)]
    return hashlib.sha256(canonical_json(reads).encode()).hexdigest()


def _compute_digest(source: SourceSpec, file: File) -> str:
    try:
        return file.digest()
    except SentFileError as error:
        raise SpecError(f"{_format_loader(source)}: {error}") from None


def add_fingerprint(source: SourceSpec) -> SourceSpec:
    """Return the source with the fingerprint of its current content."""
    return source.model_copy(update={"fingerprint": compute_fingerprint(source)})


def check_unchanged(source: SourceSpec) -> None:
    """Check that a source's content matches its fingerprint, so that no result is cached under another content's key.

    Raises:
        SpecError: the content has changed.
    """
    if compute_fingerprint(source) != source.fingerprint:
        raise SpecError(
            f"{_format_source(source)}: its rows, or your code that it names, have changed since the run was checked: "
            "start the run again"
        )


def pin(source: SourceSpec) -> SourceSpec:
    """Return the source with branches and tags replaced by commits, and patterns of configurations by names."""
    loader = source.loader
    if not isinstance(loader, HuggingFaceLoader) or loader.dataset is None:
        return source
    assert loader.revision is not None
    commit = hub.resolve_revision(loader.dataset, loader.revision, kind="dataset", where=_format_loader(source))
    loader = loader.model_copy(update={"revision": commit})
    if isinstance(loader.config, list) or set("*?") & set(loader.config or ""):
        loader = loader.model_copy(update={"config": hub.match_configs(loader, _format_loader(source))})
    return source.model_copy(update={"loader": loader})


def divide_into_batches(sources: Sequence[SourceSpec]) -> list[SourceBatch]:
    """Group the sources into batches. Each batch is read by one task.

    Small sources share a batch, because starting a pod takes longer than reading a small source. Generators are small,
    and so are sources whose files have at most `SMALL_BYTES` in total. A hub dataset is never small.

    Args:
        sources: the sources, with their fingerprints.
    """
    small = [source for source in sources if _is_small(source)]
    alone = [[source] for source in sources if source not in small]
    return [SourceBatch(sources=batch) for batch in (small, *alone) if batch]


def _is_small(source: SourceSpec) -> bool:
    if isinstance(source.loader, HuggingFaceLoader) and source.loader.dataset is not None:
        return False
    return sum(file.filesystem.size(file.path) for file in list_source_files(source)) <= SMALL_BYTES


def _number_rows(stream: Iterator[Item], reading: Reading | None = None) -> Iterator[Row]:
    for index, item in enumerate(stream):
        if item is not None:
            if reading is not None:
                reading.named += 1
            yield Row(index, item)


def _filter_stream(source: SourceSpec, stream: Iterator[Item]) -> Iterator[Item]:
    """Return the stream, with None instead of the rows that do not match the source's filter."""
    if not source.where:
        return stream
    return (_filter_row(source, item) if isinstance(item, dict) else item for item in stream)


def _filter_row(source: SourceSpec, row: dict[str, Any]) -> Item:
    try:
        return row if _is_named(source, row) else None
    except UnusableError as error:
        return Malformed(error.reason, error.category, str(error.value))


def _is_named(source: SourceSpec, row: dict[str, Any]) -> bool:
    for path, accepted in source.where.items():
        try:
            value = unwrap(get_value(row, path))
        except KeyError:
            return False
        if not any(_is_same(value, one) for one in (accepted if isinstance(accepted, list) else [accepted])):
            return False
    return True


def _is_same(value: Any, accepted: Any) -> bool:
    """Return True for equal values. In Python, True equals 1."""
    return bool(value == accepted) and isinstance(value, bool) == isinstance(accepted, bool)


def _open_checked_stream(source: SourceSpec, reading: Reading | None = None) -> Iterator[Item]:
    """Return the source's stream after checking its columns in the first rows (of each file, if it reads files)."""
    # A transform may read any column.
    columns = {root(path) for path in source.paths()} if source.transform is None else None
    match source.loader:
        case JsonlLoader() | ParquetLoader() | CsvLoader():
            return _open_checked_files(source, "path", columns, reading)
        case HuggingFaceLoader(dataset=None):
            return _open_checked_files(source, "files", columns, reading)
        case HuggingFaceLoader() as loader:
            return _open_checked_configs(source, loader, columns)
        case ReasoningGymLoader() as loader:
            made = _generate_reasoning_gym(source, loader)
        case TopicsLoader() as loader:
            made = topics.generate(loader.size, source.seed)
        case InstructionsLoader() as loader:
            counts = (loader.min_constraints, loader.max_constraints)
            made = instructions.generate(loader.size, loader.constraints, *counts, source.seed)
        case FunctionsLoader() as loader:
            made = functions.generate(loader.size, loader.tests, source.seed)
        case GuessingLoader() as loader:
            made = guessing.generate(loader.size, loader.numbers, loader.highest, source.seed, loader.examples)
    stream = _apply_transform(source, _convert_errors(made, f"{_format_loader(source)}.size", TooFewPromptsError))
    head = list(islice(stream, PEEK))
    _check_columns(source, head, "the data set")
    return chain(head, stream)


def _open_checked_files(
    source: SourceSpec, field: str, columns: set[str] | None, reading: Reading | None
) -> Iterator[Item]:
    def open_file(file: File) -> Iterator[Item]:
        where = f"{_format_loader(source)}.{field}: {file.name} cannot be read"
        reader = _choose_reader(source, file, columns)
        return _apply_transform(source, _convert_errors(reader(file), where, ERRORS))

    files = list_source_files(source)
    for file in files:
        head = _read_head(source, open_file(file), file.path)
        _check_lines(source, head, file.name)
        _check_columns(source, head, file.name)
    counts = reading or Reading()
    return chain.from_iterable(counts.count_file(file.name, open_file(file)) for file in files)


def _read_head(source: SourceSpec, stream: Iterator[Item], path: str) -> list[Item]:
    """Return the first rows of a file. Of JSON, also later rows with columns that the first rows lack."""
    head = list(islice(stream, PEEK))
    if not isinstance(source.loader, JsonlLoader) and not get_endings(path).startswith((".json", ".ndjson")):
        return head
    wanted = source.paths() if source.row_verifier is None else map(root, source.paths())
    missing = {path for path in wanted if not any(isinstance(row, dict) and _has_path(row, path) for row in head)}
    for item in stream if missing and any(isinstance(row, dict) for row in head) else ():
        if isinstance(item, dict) and (new := {path for path in missing if _has_path(item, path)}):
            head.append(item)
            missing -= new
            if not missing:
                break
    return head


def _choose_reader(source: SourceSpec, file: File, columns: Iterable[str] | None) -> Callable[[File], Iterator[Item]]:
    match source.loader:
        case JsonlLoader():
            return read_jsonl
        case ParquetLoader():
            return partial(read_parquet, columns=columns)
        case CsvLoader():
            return choose_csv_reader(file.path)
    reader = choose_reader(file.path, columns)
    if reader is None:
        raise SpecError(
            f"{_format_loader(source)}.files: {file.name}: its name must end in one of {', '.join(READERS)}"
        )
    return reader


def _open_checked_configs(source: SourceSpec, loader: HuggingFaceLoader, columns: set[str] | None) -> Iterator[Item]:
    """Yield the rows of all configurations, after checking the columns in the first rows of each."""
    wanted = None if columns is None else columns - {loader.config_column}

    def rows(config: str | None) -> Iterator[Item]:
        stream = hub.read_rows(loader, config, wanted, _format_loader(source))
        if loader.config_column is not None:
            named = {loader.config_column: config}
            stream = (item | named if isinstance(item, dict) else item for item in stream)
        return _apply_transform(source, stream)

    if len(loader.configs) == 1:
        stream = rows(loader.configs[0])
        head = list(islice(stream, PEEK))
        _check_columns(source, head, "the data set")
        return chain(head, stream)
    for config in loader.configs:
        _check_columns(source, list(islice(rows(config), PEEK)), f"configuration {config!r}")
    return chain.from_iterable(map(rows, loader.configs))


def _apply_transform(source: SourceSpec, stream: Iterator[Item]) -> Iterator[Item]:
    if source.transform is None:
        return stream
    return apply_transform(stream, source.transform, f"{_format_source(source)}: transform")


def _convert_errors(
    stream: Iterator[Item], where: str, errors: type[Exception] | tuple[type[Exception], ...]
) -> Iterator[Item]:
    """Yield from the stream, and turn its `errors` into a `SpecError` that starts with `where`."""
    try:
        yield from stream
    except SpecError:
        raise
    except errors as error:
        raise SpecError(f"{where}: {error}") from error


def _check_lines(source: SourceSpec, head: Sequence[Item], path: str) -> None:
    """Raise `SpecError` if no line at the start of a JSON Lines file is an object: it has another format."""
    wrong = [item for item in head if isinstance(item, Malformed)]
    if isinstance(source.loader, JsonlLoader) and wrong and not any(isinstance(item, dict) for item in head):
        raise SpecError(
            f"{_format_loader(source)}.path: {path}: none of its first {len(wrong)} lines is a JSON object "
            f"({wrong[0].reason}); "
            f"CSV is read by {{kind: csv, path: PATH}}; {READ_WHOLE}"
        )


def _check_columns(source: SourceSpec, head: Sequence[Item], where: str) -> None:
    """Raise `SpecError` if none of the first rows has a column, or a value at a path into one.

    Paths are not checked if the verifier depends on the row, because the first rows may then all be of another kind.
    """
    rows = [item for item in head if isinstance(item, dict)]
    available = {column for row in rows for column in row}
    for path in source.paths() if rows else ():
        name = path if path in available else root(path)
        if name not in available:
            hint = close_match(name, available)
            raise SpecError(
                f"{_format_source(source)}: columns: {where} has no column {name!r}{hint}; it has {sorted(available)}"
            )
        if source.row_verifier is None and not any(_has_path(row, path) for row in rows):
            value = rows[0].get(name)
            last = path.rpartition(".")[2]
            hint = close_match(last, value) if isinstance(value, dict) else ""
            raise SpecError(
                f"{_format_source(source)}: columns: {where} has nothing under {path!r}{hint}; {name!r} is "
                f"{value!r:.200}"
            )


def _has_path(row: dict[str, Any], path: str) -> bool:
    try:
        get_value(row, path)
    except KeyError:
        return False
    except UnusableError:
        return True  # the reason for which the row is dropped says more
    return True


def list_source_files(source: SourceSpec) -> list[File]:
    """Return the files that `source` names, in that order, with the files of a glob sorted.

    Raises:
        SpecError: a path or glob matches no file.
        ConnectionError: a path is on the hub (`hf://`), and the hub cannot be reached.
    """
    paths = getattr(source.loader, "path", None) or getattr(source.loader, "files", None) or []
    listed = paths if isinstance(paths, list) else [paths]
    of_hub = [path for path in listed if isinstance(path, str) and path.startswith("hf://")]
    if not of_hub:
        return list_files(source.loader, _format_loader(source))
    with hub.convert_errors(of_hub[0], _format_loader(source), "name a copy of the file"):
        return hub.retry(lambda: list_files(source.loader, _format_loader(source)))


def _generate_reasoning_gym(source: SourceSpec, loader: ReasoningGymLoader) -> Iterator[Item]:
    import reasoning_gym
    from reasoning_gym.factory import DATASETS

    if loader.dataset not in DATASETS:
        hint = close_match(loader.dataset, DATASETS)
        raise SpecError(
            f"{_format_loader(source)}.dataset = {loader.dataset!r}: reasoning-gym has no such data set{hint}"
        )
    settings: dict[str, Any] = dict(loader.config)
    try:
        rows = reasoning_gym.create_dataset(loader.dataset, size=loader.size, seed=source.seed, **settings)
    except (TypeError, ValueError, AssertionError) as error:
        raise SpecError(f"{_format_loader(source)}.config = {loader.config}: {error}") from None
    return (
        {**row, "prompt": row["question"], "ground_truth": row["answer"]}
        for row in map(rows.__getitem__, range(loader.size))
    )


def _format_source(source: SourceSpec) -> str:
    return f"source {source.name!r}"


def _format_loader(source: SourceSpec) -> str:
    return f"{_format_source(source)}: loader"
