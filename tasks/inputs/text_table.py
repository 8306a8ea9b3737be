"""Aligns the columns of tables for the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def table_lines(rows: Sequence[Sequence[str]], *, words: int) -> Iterator[str]:
    """Yield the indented lines of a table.

    Args:
        rows: the cells of each row, as many in each.
        words: the number of columns, from the first, that contain words and are left-aligned. The others contain
            numbers and are right-aligned.
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        cells = [
            cell.ljust(width) if column < words else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ]
        yield f"  {'  '.join(cells)}".rstrip()
