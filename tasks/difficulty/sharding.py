"""Prompts into shards: a source, a part of a large one, or several small ones together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Shard(NamedTuple):
    """Rows [start, end) of a table."""

    start: int
    end: int


def shards(sources: Sequence[str], rows: int) -> list[Shard]:
    """Shards of at most `rows` rows each, in the order of the table.

    A source that grows at its end changes its last shard alone, and one that is added at the end changes no shard of
    the sources before it, except where small ones share theirs.

    Args:
        sources: of each row, those of one source together.
        rows: of a shard at most.
    """
    found: list[Shard] = []
    start = 0
    for _, group in groupby(sources):
        end = start + sum(1 for _ in group)
        if found and end - found[-1].start <= rows:
            found[-1] = Shard(found[-1].start, end)
        else:
            found += [Shard(first, min(first + rows, end)) for first in range(start, end, rows)]
        start = end
    return found
