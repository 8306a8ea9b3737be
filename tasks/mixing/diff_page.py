"""Renders the page that compares two mixtures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any


def render_difference(before: Path, after: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the page as HTML text.

    Args:
        before: Parquet file of the first mixture.
        after: Parquet file of the second mixture.
        rows: the rows of `tasks.mixing.diff.difference`.
    """
    from tasks import charts

    everything = rows[-1]
    figures = {
        "before": f"{everything['places_before']:,}",
        "after": f"{everything['places_after']:,}",
        "came": f"{everything['came']:,}",
        "went": f"{everything['went']:,}",
    }
    named = f"<p>{escape(str(before))} and {escape(str(after))}</p>"
    table = charts.render_table([_format_row(row) for row in rows], "By source")
    return charts.document(
        "Two mixtures", charts.page(figures, named, charts.add_styles(charts.draw_mixture_difference(rows[:-1])), table)
    )


def rate(value: float | None) -> str:
    """Return a share or pass rate as a percentage, as on the terminal."""
    return "-" if value is None else f"{value:.1%}"


def _format_row(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row of the table: shares and pass rates as percentages."""
    is_rate = {f"{name}_{side}" for name in ("share", "pass_rate") for side in ("before", "after")}
    return {name: rate(value) if name in is_rate else value for name, value in row.items()}
