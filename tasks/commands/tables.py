"""Prints tables on the terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 10_000
"""Maximum width of a table. A name that is wrapped or cut could not be copied."""


def table_of(words: Sequence[str], numbers: Sequence[str]) -> Table:
    """Return an empty table with columns of words, and after them columns of numbers, aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in words:
        table.add_column(name)
    for name in numbers:
        table.add_column(name, justify="right")
    return table


def print_table(table: Table) -> None:
    """Print a table without wrapping its cells."""
    from rich.console import Console

    Console(width=WIDE).print(table)
