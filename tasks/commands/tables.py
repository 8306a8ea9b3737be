"""Prints tables on the terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 10_000
"""Maximum width of a table. A name that is wrapped or cut could not be copied."""


def print_table(table: Table) -> None:
    """Print a table without wrapping its cells."""
    from rich.console import Console

    Console(width=WIDE).print(table)
