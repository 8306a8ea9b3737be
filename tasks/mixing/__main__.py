"""Compares two mixtures on the command line: `python -m tasks.mixing diff BEFORE AFTER`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.machine.error_report import run_command
from tasks.mixing.diff import difference
from tasks.mixing.diff_page import difference_page, rate

WIDE = 10_000
"""Maximum width of the table. A name that is wrapped or cut could not be copied."""

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
"""Type of the arguments that are mixtures."""


@click.group()
def main() -> None:
    """Compare mixtures."""


@main.command()
@click.argument("before", type=EXISTING)
@click.argument("after", type=EXISTING)
@click.option("--page", type=click.Path(path_type=Path), help="An HTML file for the table and its chart.")
def diff(before: Path, after: Path, page: Path | None) -> None:
    """Print the differences between the mixtures BEFORE and AFTER (Parquet files), source by source."""
    from rich.console import Console
    from rich.table import Table

    rows = difference(before, after)
    printed = Table(box=None, pad_edge=False)
    printed.add_column("domain")
    printed.add_column("source")
    for name in ("places", "share", "pass rate", "came", "went"):
        printed.add_column(name, justify="right")
    for row in rows:
        printed.add_row(
            row["domain"],
            row["source"],
            f"{row['places_before']:,} -> {row['places_after']:,}",
            f"{row['share_before']:.1%} -> {row['share_after']:.1%}",
            f"{rate(row['pass_rate_before'])} -> {rate(row['pass_rate_after'])}",
            f"+{row['came']:,}",
            f"-{row['went']:,}",
        )
    Console(width=WIDE).print(printed)
    if page is not None:
        page.write_text(difference_page(before, after, rows))


if __name__ == "__main__":
    run_command(main)
