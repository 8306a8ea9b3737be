"""`outputs/index.html`: all runs of this folder, the newest first."""

from __future__ import annotations

import json
from html import escape
from pathlib import Path
from typing import Any

from tasks import charts
from tasks.reporting import formats
from tasks.storage.durable import whole


def write_index(outputs: Path) -> Path:
    """Write the page from the `summary.json` of each run; a folder without one that can be read is passed over."""
    runs = []
    for path in sorted(outputs.glob("*/summary.json"), reverse=True):
        if path.parent.is_symlink():
            continue
        try:
            runs.append((path.parent.name, json.loads(path.read_text())))
        except (OSError, ValueError):
            continue
    page = outputs / "index.html"
    with whole(page) as partial:
        partial.write_text(
            '<!DOCTYPE html><html lang="en"><meta charset="utf-8"><title>rlvr-flyte: runs</title>'
            + charts.page({"runs": f"{len(runs):,}"}, _table(runs))
            + "</html>\n"
        )
    return page


def _table(runs: list[tuple[str, dict[str, Any]]]) -> str:
    names = ("run", "data", "before", "after", "gain, 95%", "time", "from the cache")
    head = "".join(f"<th>{name}</th>" for name in names)
    return f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(_row(*run) for run in runs)}</tbody></table>"


def _row(name: str, summary: dict[str, Any]) -> str:
    stages = summary.get("stages", {}).values()
    cells = [
        f'<a href="{escape(name)}/report.html">{escape(name)}</a>',
        escape(str(summary.get("title", ""))),
        formats.percent(summary["before"]),
        formats.percent(summary["after"]),
        f"{formats.points(summary['gain'])} ({100 * summary['gain_low']:+.1f} to {100 * summary['gain_high']:+.1f})",
        formats.duration(summary["seconds"]),
        f"{sum(stage['cached'] for stage in stages)} of {len(stages)} stages",
    ]
    return f"<tr>{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
