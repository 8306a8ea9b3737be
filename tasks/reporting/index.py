"""The page `outputs/index.html`: all runs of that folder, the newest first, with what tells them apart.

That is their data, their initial checkpoint, the nearest recipe that ships with what was overridden, their gain, and
the options in which they differ from each other.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks import charts
from tasks.lineage.differences import differences
from tasks.reporting.environment import templates
from tasks.storage.durable import whole

OVERRIDDEN = 8
"""Options that differ from the nearest recipe that the page shows of a run; of others it has the number."""
COMPARISON = {"before", "after", "gain", "gain_low", "gain_high"}
"""Keys of a summary that has a comparison of two policies."""


def write_index(outputs: Path) -> Path:
    """Write the page from the `summary.json` of every run, and return its path.

    A folder without a summary that can be read, or with one that lacks what the page shows, is left out.
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
    """Return whether a summary has what the page shows of a run: its time, and all of a comparison or none of it."""
    return "seconds" in run and ("gain" not in run or run.keys() >= COMPARISON)


def _page(figures: dict[str, str], table: str) -> Markup:
    return Markup(charts.page(figures, table))  # noqa: S704 - escaped by its own template
