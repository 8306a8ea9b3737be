"""The page `outputs/index.html`: all runs of that folder, the newest first."""

from __future__ import annotations

import json
from pathlib import Path

from markupsafe import Markup

from tasks import charts
from tasks.reporting.environment import templates
from tasks.storage.durable import whole


def write_index(outputs: Path) -> Path:
    """Write the page from the `summary.json` of every run, and return its path.

    A folder without a summary that can be read is left out.
    """
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
        partial.write_text(templates().get_template("index.html.j2").render(runs=runs, page=_page))
    return page


def _page(figures: dict[str, str], table: str) -> Markup:
    return Markup(charts.page(figures, table))  # noqa: S704 - escaped by its own template
