"""Counts what is read of a source, so that a row that became neither a prompt nor a dropped row can be explained."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from typing import Any

from tasks.sourcing.files import Item
from tasks.tables.schemas import row_rank


@dataclass
class Reading:
    """The counts of a source. They are complete once all rows have been read.

    Attributes:
        rows: the number of entries, which includes blank lines.
        blank: the number of blank lines.
        named: the number of entries, without blank lines, that the source's filter accepts.
        files: the number of entries of each file, by its name, in the order of the source.
        sampled: the number of rows in the sample (`limit`), or None if all rows are read.
        last_rank: the rank of the last row of the sample, in hex digits, or None.
    """

    rows: int = 0
    blank: int = 0
    named: int = 0
    files: dict[str, int] = field(default_factory=dict)
    sampled: int | None = None
    last_rank: str | None = None

    def count_file(self, name: str, stream: Iterator[Item]) -> Iterator[Item]:
        """Yield the entries of a file, and count them."""
        self.files.setdefault(name, 0)
        for item in stream:
            self.files[name] += 1
            yield item

    def count_source(self, stream: Iterator[Item]) -> Iterator[Item]:
        """Yield the entries of the source, and count them."""
        for item in stream:
            self.rows += 1
            self.blank += item is None
            yield item

    def set_sample(self, seed: int, indices: list[int]) -> None:
        """Store the last rank of a sample, which says of any other row whether it was left out by the sample."""
        self.sampled = len(indices)
        self.last_rank = max((row_rank(seed, index) for index in indices), default=b"").hex()

    def facts(self, seed: int) -> dict[str, Any]:
        """Return the counts as JSON values, with the seed of the sample.

        Files are named without the folder that contains all of them, because the content of a folder that was moved is
        read from the cache.
        """
        folder = os.path.commonpath(map(os.path.dirname, self.files)) if self.files else ""
        files = [[name.removeprefix(folder).removeprefix("/"), count] for name, count in self.files.items()]
        return {**asdict(self), "files": files, "seed": seed}
