"""Reads the rows of CSV files, with cells as text, and stops if the end of a row is not clear.

Quotation marks within a cell are doubled, as the standard says (RFC 4180). Other programs write a backslash before
them. Both readings of a file may be possible, and one may find rows in the middle of a cell of the other.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from tasks.sourcing.contents import open_text
from tasks.sourcing.files import File, Item, Malformed

LONGEST_CELL = 2**31 - 1
"""Maximum number of characters of a CSV cell. The default of the module `csv` is 131,072."""

STANDARD: dict[str, Any] = {"strict": True}
BACKSLASHES: dict[str, Any] = {"strict": True, "escapechar": "\\", "doublequote": False}
LENIENT: dict[str, Any] = {"strict": False}

WAY_OUT = 'write quotation marks within cells as "", or the rows as JSON Lines or Parquet'


def read_csv(file: File, delimiter: str = ",", names: Sequence[str] | None = None) -> Iterator[Item]:
    """Yield the rows of a CSV file, with cells as text.

    Args:
        file: the file, compressed or not.
        delimiter: the character between cells.
        names: the names of the columns. If None, the first row of the file contains them.

    Raises:
        ValueError: a name occurs twice, cells are separated by semicolons, the last quotation mark is not closed, or
            the end of a row is not clear.
    """
    csv.field_size_limit(LONGEST_CELL)
    with open_text(file) as stream:
        # A row with invalid UTF-8 is dropped later: its text is not valid Unicode.
        records = _Records(io.TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline=""), delimiter)
        first = next(iter(records), []) if names is None else names
        if isinstance(first, Malformed):
            raise ValueError(first.reason)
        names = make_unique_names(first)
        if len(names) == 1 and delimiter == "," and ";" in names[0]:
            raise ValueError(f"its cells must be separated by commas, and its first line is {names[0]!r}")
        for cells in records:
            yield cells if isinstance(cells, Malformed) else _make_row(cells, names, delimiter)


def make_unique_names(names: Sequence[str]) -> Sequence[str]:
    """Return the names of columns.

    Raises:
        ValueError: a name occurs twice.
    """
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ValueError(f"column {twice[0]!r} occurs twice")
    return names


def _make_row(cells: Sequence[str], names: Sequence[str], delimiter: str) -> Item:
    if not cells:
        return None
    if len(cells) != len(names):
        reason = f"{len(cells)} cells under {len(names)} columns"
        return Malformed(reason, "another number of cells than columns", delimiter.join(cells))
    return dict(zip(names, cells, strict=True))


class _Records:
    """Iterates over the records of a CSV file. An invalid record with a certain end is `Malformed`."""

    def __init__(self, lines: Iterable[str], delimiter: str) -> None:
        self._lines, self._delimiter = iter(lines), delimiter
        self._record: list[str] = []
        self._rows = csv.reader(self._record_lines(), delimiter=delimiter, **STANDARD)

    def __iter__(self) -> Iterator[list[str] | Malformed]:
        while True:
            self._record.clear()
            try:
                cells = next(self._rows)
            except StopIteration:
                return
            except csv.Error as error:
                yield self._make_malformed(str(error))
                continue
            if any('\\"' in line for line in self._record):
                self._check_end(BACKSLASHES)
            yield cells

    def _record_lines(self) -> Iterator[str]:
        for line in self._lines:
            self._record.append(line)
            yield line

    def _make_malformed(self, error: str) -> Malformed:
        if "end of data" in error:
            raise ValueError("a quotation mark is not closed before the end of the file")
        line = self._rows.line_num
        reason = f"not valid CSV: {error} in line {line}"
        if len(self._record) > 1:
            raise ValueError(f"{reason}, in a row that begins in line {line - len(self._record) + 1}; {WAY_OUT}")
        for dialect in (LENIENT, BACKSLASHES):
            self._check_end(dialect)
        return Malformed(reason, "not valid CSV", "")

    def _check_end(self, dialect: dict[str, Any]) -> None:
        """Check that the record has the same end in another dialect, if it is valid there.

        Raises:
            ValueError: it has another end.
        """
        rows = csv.reader([*self._record, "\n"], delimiter=self._delimiter, **dialect)
        try:
            next(rows)
        except csv.Error as error:
            if "end of data" not in str(error):
                return
        if rows.line_num != len(self._record):
            line = self._rows.line_num - len(self._record) + 1
            raise ValueError(
                f"the row of line {line} may end in line {line + len(self._record) - 1}, or elsewhere if a backslash "
                f"comes before a quotation mark that is part of a cell; {WAY_OUT}"
            )
