"""Divides prompts into shards: a source, a part of a large one, or several small ones together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby


def shards(sources: Sequence[str], rows: int) -> list[range]:
    """Divide a table into shards of at most `rows` rows, in the order of the table. A shard is a range of rows.

    If rows are appended to a source, only its last shard changes. If a source is added at the end, no shard of the
    sources before it changes, unless small sources share a shard.

    Args:
        sources: the source of each row; the rows of one source are contiguous.
        rows: maximum number of rows of a shard.
    """
    made: list[range] = []
    start = 0
    for _, group in groupby(sources):
        end = start + sum(1 for _ in group)
        if made and end - made[-1].start <= rows:
            made[-1] = range(made[-1].start, end)
        else:
            made += [range(first, min(first + rows, end)) for first in range(start, end, rows)]
        start = end
    return made
