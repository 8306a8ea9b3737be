"""Divides prompts into shards: a source, a part of a large one, or several small ones together."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import NamedTuple


class Shard(NamedTuple):
    """The rows [start, end) of a table."""

    start: int
    end: int


def shards(sources: Sequence[str], rows: int) -> list[Shard]:
    """Divide a table into shards of at most `rows` rows, in the order of the table.

    A source that grows at its end changes its last shard alone, and one that is added at the end changes no shard of
    the sources before it, except where small ones share theirs.

    Args:
        sources: the source of each row; the rows of one source stand together.
        rows: rows of a shard, at most.
    """
    made: list[Shard] = []
    start = 0
    for _, group in groupby(sources):
        end = start + sum(1 for _ in group)
        if made and end - made[-1].start <= rows:
            made[-1] = Shard(made[-1].start, end)
        else:
            made += [Shard(first, min(first + rows, end)) for first in range(start, end, rows)]
        start = end
    return made
