"""Stores rows on any file system, append-only and read by key and number, for the rollout cache.

    <folder>/<time>-<random>.parquet    a segment: rows in the order of `append`, written once and never changed

A segment is never partially written: object stores put whole objects, and a local file is renamed at the end.
Writers on different machines share a folder without a lock, because they never write to the same name. If several
wrote the same row, the row in the first segment by name counts. A killed process loses the rows of its last minute.
A row may be temporary: it counts only in the process that appended it.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tasks.failures import MistakeError
from tasks.storage.durable import write_whole
from tasks.tables.parquet import build_table

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Key = tuple[str, int]
"""`key` and number of a row."""
Row = Mapping[str, Any]
"""A row by the names of its columns."""

SEGMENT_ROWS = 8192
"""A segment is due when this number of rows is in memory."""
SEGMENT_CHARS = 64 << 20
"""A segment is due when this number of characters is in memory."""
SEGMENT_SECONDS = 60.0
"""A segment is due this number of seconds after its first row."""
GROUP_ROWS = 256
"""Rows per row group. A row group is read as a whole, and long responses have 100 KB each."""
GROUPS_IN_MEMORY = 8
"""Number of row groups that are cached in memory (the most recently read ones)."""
READERS = 16
"""Number of segments whose keys are read at the same time."""


class DamagedSegmentError(MistakeError):
    """A segment cannot be read. The message names the file, which may be deleted."""


class _RowAddress(NamedTuple):
    """The position of a row: its segment, its row group in the segment, and its index in the row group."""

    segment: str
    group: int
    row: int


class RowStore:
    """Stores rows of one schema, which has the column `key` (text) and a column of numbers.

    `append` and `flush` may run in two threads.

    Args:
        filesystem: an fsspec file system, with its credentials.
        folder: a folder on the file system. It does not have to exist.
        schema: schema of the rows.
        number: column of the schema with a row's number. Rows with the same key have different numbers.
        temporary: Optional. Column of the schema that is true in temporary rows. If None, no row is temporary.
    """

    def __init__(
        self,
        filesystem: AbstractFileSystem,
        folder: str,
        schema: pa.Schema,
        *,
        number: str = "sample",
        temporary: str | None = None,
    ) -> None:
        self._fs = filesystem
        self._folder = folder.rstrip("/")
        self._schema = schema
        self._number = number
        self._temporary = temporary
        self._addresses: dict[Key, _RowAddress] = {}
        self._waiting: list[Row] = []
        self._characters = 0
        self._since = 0.0
        self._flushing = threading.Lock()
        self._group = lru_cache(GROUPS_IN_MEMORY)(self._read_group)

    def find(self, keys: Iterable[str]) -> None:
        """Look up the rows of these keys in all segments. Only rows that were looked up or appended can be read.

        Raises:
            DamagedSegmentError: a segment cannot be read.
        """
        wanted = pa.array(sorted(set(keys)), pa.string())
        self._fs.invalidate_cache()
        names = sorted(name for name in self._fs.find(self._folder) if name.endswith(".parquet"))
        with ThreadPoolExecutor(READERS) as readers:
            for addresses in readers.map(partial(self._find_row, wanted), names):
                for key, address in addresses:
                    self._addresses.setdefault(key, address)

    def __contains__(self, key: Key) -> bool:
        """Return whether `read` finds this row."""
        return key in self._addresses

    def append(self, row: Row) -> None:
        """Add a row in memory. `flush` writes it and makes it readable."""
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))

    @property
    def due(self) -> bool:
        """True if there are so many rows in memory, or for so long, that `flush` should be called."""
        return bool(self._waiting) and (
            len(self._waiting) >= SEGMENT_ROWS
            or self._characters >= SEGMENT_CHARS
            or time.monotonic() - self._since >= SEGMENT_SECONDS
        )

    def flush(self) -> None:
        """Write the rows in memory as a segment. May run in another thread than `append`."""
        with self._flushing:
            rows, self._waiting, self._characters = self._waiting, [], 0
            if not rows:
                return
            # If sampling has no seed, two processes may write different rows for the same key. The sorted names
            # decide which of them counts, in the same way for every reader.
            name = f"{self._folder}/{time.time_ns():020}-{uuid.uuid4().hex[:8]}.parquet"
            self._write(name, build_table(rows, self._schema, name))
            for index, row in enumerate(rows):
                address = _RowAddress(name, index // GROUP_ROWS, index % GROUP_ROWS)
                self._addresses.setdefault((row["key"], row[self._number]), address)

    def read(self, keys: Sequence[Key]) -> pa.Table:
        """Return the rows of these keys, in the order of the keys, as a table of the schema.

        Raises:
            KeyError: a row does not exist, was not looked up with `find`, or is not flushed yet.
            DamagedSegmentError: a segment cannot be read.
        """
        by_group: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for position, key in enumerate(keys):
            address = self._addresses[key]
            by_group[address.segment, address.group].append((position, address.row))
        parts = [self._schema.empty_table()]
        positions: list[int] = []
        for (segment, group), wanted in by_group.items():
            parts.append(self._group(segment, group).take(pa.array([row for _, row in wanted], pa.int64())))
            positions += [position for position, _ in wanted]
        rows_by_group = pa.concat_tables(parts)
        return rows_by_group.take(pc.sort_indices(pa.array(positions, pa.int64())))

    def _write(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=GROUP_ROWS, compression="zstd", write_page_checksum=True)
        self._fs.makedirs(self._folder, exist_ok=True)
        if isinstance(self._fs, LocalFileSystem):
            with write_whole(Path(self._fs._strip_protocol(name))) as unfinished:
                self._fs.pipe_file(str(unfinished), sink.getvalue().to_pybytes())
        else:  # an object on blob storage is never partially written
            self._fs.pipe_file(name, sink.getvalue().to_pybytes())

    def _find_row(self, wanted: pa.Array, name: str) -> list[tuple[Key, _RowAddress]]:
        with self._opened(name) as file:
            keys = file.read(columns=["key", self._number, *([self._temporary] if self._temporary else [])])
        counts = pc.is_in(keys.column("key"), wanted)
        if self._temporary:
            counts = pc.and_not(counts, keys.column(self._temporary))
        rows = pc.indices_nonzero(counts)
        matches = keys.take(rows)
        columns = (matches.column("key").to_pylist(), matches.column(self._number).to_pylist(), rows.to_pylist())
        return [
            ((key, number), _RowAddress(name, row // GROUP_ROWS, row % GROUP_ROWS))
            for key, number, row in zip(*columns, strict=True)
        ]

    def _read_group(self, segment: str, number: int) -> pa.Table:
        with self._opened(segment) as file:
            return file.read_row_group(number).select(self._schema.names)

    @contextmanager
    def _opened(self, name: str) -> Iterator[pq.ParquetFile]:
        try:
            with self._fs.open(name, "rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
                yield file
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and "checksum" not in str(error):
                raise  # the storage failed
            raise DamagedSegmentError(
                f"{name} is damaged ({error}); delete it, and its rows are generated again"
            ) from error
