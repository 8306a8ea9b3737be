"""Writes the page `outputs/index.html`, which lists all runs in the folder, newest first.

For each run, the page shows its data, initial checkpoint and gain, the nearest built-in recipe with the overridden
options, and the options that differ between runs.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks import charts
from tasks.lineage.differences import differences
from tasks.reporting.page_templates import templates
from tasks.storage.durable import whole

OVERRIDDEN = 8
"""Maximum number of options shown for a run that differ from the nearest recipe. The rest are only counted."""
COMPARISON = {"before", "after", "gain", "gain_low", "gain_high"}
"""Keys that a summary has if it contains a comparison of two policies."""


def write_index(outputs: Path) -> Path:
    """Write the page from the `summary.json` of every run, and return its path.

    Folders are skipped if their summary is unreadable or lacks a value that the page shows.
    """
    runs = []
    for path in sorted(outputs.glob("*/summary.json"), reverse=True):
        if path.parent.is_symlink():
            continue
        try:
            run = json.loads(path.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(run, Mapping) and _is_whole(run):
            runs.append((path.parent.name, run))
    options = differences([run.get("options", {}) for _, run in runs])
    rows = [(name, run, own) for (name, run), own in zip(runs, options, strict=True)]
    page = outputs / "index.html"
    with whole(page) as partial:
        partial.write_text(templates().get_template("index.html.j2").render(runs=rows, page=_page, shown=OVERRIDDEN))
    return page


def _is_whole(run: Mapping[str, Any]) -> bool:
    """Return whether a summary has everything the page shows: the run's time, and either a full comparison or none."""
    return "seconds" in run and ("gain" not in run or run.keys() >= COMPARISON)


def _page(figures: dict[str, str], table: str) -> Markup:
    return Markup(charts.page(figures, table))  # noqa: S704 - escaped by its own template
