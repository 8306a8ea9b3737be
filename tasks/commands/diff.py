"""Compares two mixtures: `rlvr diff`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.commands.options import EXISTING
from tasks.commands.tables import print_table, table_of


@click.command()
@click.argument("before", type=EXISTING)
@click.argument("after", type=EXISTING)
@click.option("--page", type=click.Path(path_type=Path), help="An HTML file for the table and its chart.")
def diff(before: Path, after: Path, page: Path | None) -> None:
    """Compare the sources of the mixtures BEFORE and AFTER.

    Both are Parquet files.
    """
    from tasks.mixing.diff import difference
    from tasks.mixing.diff_page import rate, render_difference

    rows = difference(before, after)
    printed = table_of(["domain", "source"], ["places", "share", "pass rate", "came", "went"])
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
    print_table(printed)
    if page is not None:
        page.write_text(render_difference(before, after, rows))
