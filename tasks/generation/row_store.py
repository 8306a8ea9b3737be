"""Rows that were paid for, kept on any storage, and found again by key and sample.

    <place>/<time>-<random>.parquet    a segment: rows as they came, written once and never changed

A segment is there as a whole or not at all: object stores put whole objects, and a local file gets its name at the end.
Writers on different machines share a place without a lock, because no two of them ever write to one name; of a row that
both made, the one in the first segment counts. What is lost with a killed process are the rows of its last minute.
"""

from __future__ import annotations

import threading
import time
import uuid
from collections import OrderedDict, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from fsspec.implementations.local import LocalFileSystem

from tasks.failures import MistakeError
from tasks.storage.durable import whole
from tasks.tables.parquet import table_from_rows

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Key = tuple[str, int]
"""`key` and `sample` of a row."""

SEGMENT_ROWS = 8192
SEGMENT_CHARS = 64 << 20
SEGMENT_SECONDS = 60.0
"""A segment is due once it has so many rows, or characters of text, or its first row waits for so long."""
GROUP_ROWS = 256
"""Rows that are read together: long responses are 100 KB each."""
GROUPS_IN_MEMORY = 8
READERS = 16
"""Segments whose keys are read at the same time."""


class DamagedSegmentError(MistakeError):
    """A segment cannot be read: names it, and says that it may be deleted."""


class _RowAddress(NamedTuple):
    """Where a row is: its segment, the number of its row group there, and of the row in that."""

    segment: str
    group: int
    row: int


class RowStore:
    """Rows of one schema, which has the columns `key` (text) and `sample` (a number).

    Args:
        filesystem: an fsspec file system, with its credentials.
        place: a folder on it, which need not exist.
        schema: of the rows.
    """

    def __init__(self, filesystem: AbstractFileSystem, place: str, schema: pa.Schema) -> None:
        self._fs = filesystem
        self._folder = place.rstrip("/")
        self._schema = schema
        self._places: dict[Key, _RowAddress] = {}
        self._waiting: list[Mapping[str, Any]] = []
        self._characters = 0
        self._since = 0.0
        self._flushing = threading.Lock()
        self._groups: OrderedDict[tuple[str, int], pa.Table] = OrderedDict()

    def find(self, keys: Iterable[str]) -> None:
        """Look for rows of these keys on the storage; `in` and `read` know of those afterwards.

        Raises:
            DamagedSegmentError: a segment cannot be read.
        """
        wanted = pa.array(sorted(set(keys)), pa.string())
        self._fs.invalidate_cache()
        names = sorted(name for name in self._fs.find(self._folder) if name.endswith(".parquet"))
        with ThreadPoolExecutor(READERS) as readers:
            for places in readers.map(partial(self._find_in, wanted), names):
                for key, place in places:
                    self._places.setdefault(key, place)

    def __contains__(self, key: Key) -> bool:
        """Whether `read` would find this row."""
        return key in self._places

    def append(self, row: Mapping[str, Any]) -> None:
        """Take a row of the schema, which is written with the next segment."""
        self._since = self._since if self._waiting else time.monotonic()
        self._waiting.append(row)
        self._characters += sum(len(value) for value in row.values() if isinstance(value, str))

    @property
    def due(self) -> bool:
        """Whether `flush` should be called."""
        return bool(self._waiting) and (
            len(self._waiting) >= SEGMENT_ROWS
            or self._characters >= SEGMENT_CHARS
            or time.monotonic() - self._since >= SEGMENT_SECONDS
        )

    def flush(self) -> None:
        """Write the rows that wait as a segment; may run in another thread than `append`."""
        with self._flushing:
            rows, self._waiting, self._characters = self._waiting, [], 0
            if not rows:
                return
            # Of unseeded rows two processes may make different ones; the sorted names say whose count, in all of them.
            name = f"{self._folder}/{time.time_ns():020}-{uuid.uuid4().hex[:8]}.parquet"
            self._write(name, table_from_rows(rows, self._schema, name))
            for index, row in enumerate(rows):
                place = _RowAddress(name, index // GROUP_ROWS, index % GROUP_ROWS)
                self._places.setdefault((row["key"], row["sample"]), place)

    def read(self, keys: Sequence[Key]) -> pa.Table:
        """The rows of these keys, in their order, as a table of the schema.

        Raises:
            KeyError: there is no such row, or it was not flushed.
            DamagedSegmentError: a segment cannot be read.
        """
        by_group: dict[tuple[str, int], list[tuple[int, int]]] = defaultdict(list)
        for position, key in enumerate(keys):
            place = self._places[key]
            by_group[place.segment, place.group].append((position, place.row))
        parts = [self._schema.empty_table()]
        positions: list[int] = []
        for (segment, group), wanted in by_group.items():
            parts.append(self._group(segment, group).take(pa.array([row for _, row in wanted], pa.int64())))
            positions += [position for position, _ in wanted]
        found = pa.concat_tables(parts)
        return found.take(pc.sort_indices(pa.array(positions, pa.int64())))

    def _write(self, name: str, table: pa.Table) -> None:
        sink = pa.BufferOutputStream()
        pq.write_table(table, sink, row_group_size=GROUP_ROWS, compression="zstd", write_page_checksum=True)
        self._fs.makedirs(self._folder, exist_ok=True)
        if isinstance(self._fs, LocalFileSystem):
            with whole(Path(self._fs._strip_protocol(name))) as unfinished:
                self._fs.pipe_file(str(unfinished), sink.getvalue().to_pybytes())
        else:  # an object on blob storage appears whole
            self._fs.pipe_file(name, sink.getvalue().to_pybytes())

    def _find_in(self, wanted: pa.Array, name: str) -> list[tuple[Key, _RowAddress]]:
        with self._opened(name) as file:
            keys = file.read(columns=["key", "sample"])
        found = pc.indices_nonzero(pc.is_in(keys.column("key"), wanted))
        here = keys.take(found)
        columns = (here.column("key").to_pylist(), here.column("sample").to_pylist(), found.to_pylist())
        return [
            ((key, sample), _RowAddress(name, row // GROUP_ROWS, row % GROUP_ROWS))
            for key, sample, row in zip(*columns, strict=True)
        ]

    def _group(self, segment: str, number: int) -> pa.Table:
        if (segment, number) not in self._groups:
            with self._opened(segment) as file:
                self._groups[segment, number] = file.read_row_group(number).select(self._schema.names)
            if len(self._groups) > GROUPS_IN_MEMORY:
                self._groups.popitem(last=False)
        self._groups.move_to_end((segment, number))
        return self._groups[segment, number]

    @contextmanager
    def _opened(self, name: str) -> Iterator[pq.ParquetFile]:
        try:
            with self._fs.open(name, "rb") as raw, pq.ParquetFile(raw, page_checksum_verification=True) as file:
                yield file
        except (pa.ArrowInvalid, OSError) as error:
            if isinstance(error, OSError) and "checksum" not in str(error):
                raise  # the storage's own
            raise DamagedSegmentError(f"{name} is damaged ({error}); delete it, and its rows are made anew") from error
