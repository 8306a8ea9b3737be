"""Compares two mixtures: `rlvr diff`."""

from __future__ import annotations

from html import escape
from pathlib import Path
from typing import Any

import click

from tasks.commands.options import EXISTING
from tasks.commands.tables import print_table


@click.command()
@click.argument("before", type=EXISTING)
@click.argument("after", type=EXISTING)
@click.option("--page", type=click.Path(path_type=Path), help="An HTML file for the table and its chart.")
def diff(before: Path, after: Path, page: Path | None) -> None:
    """Compare the sources of the mixtures BEFORE and AFTER.

    Both are Parquet files.
    """
    from rich.table import Table

    from tasks.mixing.diff import difference

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
            f"{_rate(row['pass_rate_before'])} -> {_rate(row['pass_rate_after'])}",
            f"+{row['came']:,}",
            f"-{row['went']:,}",
        )
    print_table(printed)
    if page is not None:
        page.write_text(_page(before, after, rows))


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1%}"


def _page(before: Path, after: Path, rows: list[dict[str, Any]]) -> str:
    from tasks import charts

    everything = rows[-1]
    figures = {
        "before": f"{everything['places_before']:,}",
        "after": f"{everything['places_after']:,}",
        "came": f"{everything['came']:,}",
        "went": f"{everything['went']:,}",
    }
    named = f"<p>{escape(str(before))} and {escape(str(after))}</p>"
    chart = charts.mixture_difference(rows[:-1])
    body = charts.page(figures, named, charts.deck(chart), charts.table(rows, "By source"))
    head = '<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>Two mixtures</title>'
    return f'<!DOCTYPE html><html lang="en"><head>{head}</head><body>{body}</body></html>'
