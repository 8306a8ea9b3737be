"""Divides the rows of a Parquet file into row groups. A row group is written and read as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

ROW_GROUP = 1 << 15
"""Maximum number of rows in a row group."""
ROW_GROUP_BYTES = 128 << 20
"""Bytes of uncompressed text at which a row group ends, because a response may have 100 KB."""


def split_row_groups(tables: Iterable[pa.Table], schema: pa.Schema) -> Iterator[pa.Table]:
    """Yield the rows in groups that depend only on the rows. There is at least one group, which may be empty.

    Args:
        tables: parts of the table, in order.
        schema: the columns.
    """
    waiting = schema.empty_table()
    sizes = np.empty(0, np.int64)
    written = False
    for table in tables:
        waiting = pa.concat_tables([waiting, table.replace_schema_metadata(schema.metadata)])
        sizes = np.concatenate([sizes, _count_text_bytes(table)])
        while (end := _end_of_group(sizes)) is not None:
            yield waiting.slice(0, end)
            written, waiting, sizes = True, waiting.slice(end), sizes[end:]
    if waiting.num_rows or not written:
        yield waiting


def _end_of_group(sizes: NDArray[np.int64]) -> int | None:
    """Return the number of rows in the first group, or None if it is not full. The row that fills it is its last."""
    full = int(np.searchsorted(np.cumsum(sizes[:ROW_GROUP]), ROW_GROUP_BYTES)) + 1
    end = min(full, ROW_GROUP)
    return end if end <= len(sizes) else None


def _count_text_bytes(table: pa.Table) -> NDArray[np.int64]:
    """Return the bytes of text in each row, including text in lists."""
    total = np.zeros(table.num_rows, np.int64)
    for column in table.columns:
        sizes = [_count_bytes(chunk) for chunk in column.chunks]
        total += np.concatenate([np.empty(0, np.int64), *sizes])
    return total


def _count_bytes(array: pa.Array) -> NDArray[np.int64]:
    if pa.types.is_string(array.type) or pa.types.is_large_string(array.type):
        return pc.fill_null(pc.binary_length(array), 0).to_numpy(zero_copy_only=False).astype(np.int64)
    if pa.types.is_struct(array.type):
        return np.sum([_count_bytes(field) for field in array.flatten()], axis=0, dtype=np.int64)
    if pa.types.is_list(array.type):
        ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(_count_bytes(array.flatten()))])
        counts = pc.fill_null(pc.list_value_length(array), 0).to_numpy(zero_copy_only=False)
        last = np.cumsum(counts)
        return ends[last] - ends[last - counts]
    return np.zeros(len(array), np.int64)
