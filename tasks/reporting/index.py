"""Writes the page `outputs/index.html`, which lists all runs in the folder, newest first, and the experiments.

For each run, the page shows its data, initial checkpoint and gain, and the nearest built-in recipe. The options that
differ from it or between runs are folded, so that a run is one line.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.lineage.differences import find_differences
from tasks.reporting.page_templates import load_templates
from tasks.storage.durable import write_whole

INDEX = "index.html"
"""Name of the page."""
EXPERIMENTS = "experiments"
"""Name of the folder of experiments inside the folder of local runs."""
COMPARISON = {"before", "after", "gain", "gain_low", "gain_high"}
"""Keys that a summary has if it contains a comparison of two policies."""
FURTHER = {"responses": "view/index.html"}
"""Further pages in the folder of a run, by the text of the link to them. A link is shown if the page exists."""


@dataclass(frozen=True)
class Listed:
    """A run on the page.

    Attributes:
        name: name of its folder.
        summary: content of its `summary.json`.
        page: its report inside the folder, or "" for a part of the pipeline, which has none.
        further: other pages inside the folder, by the text of the link.
        differing: the options that differ between the runs.
    """

    name: str
    summary: Mapping[str, Any]
    page: str
    further: Mapping[str, str]
    differing: list[str]

    @property
    def overridden(self) -> list[str]:
        """The options that differ from the nearest recipe."""
        return list(self.summary.get("overridden", ()))

    @property
    def stages(self) -> int:
        """The number of stages."""
        return len(self.summary.get("stages", {}))

    @property
    def cached(self) -> int:
        """The number of stages from the cache."""
        return sum(bool(stage["cached"]) for stage in self.summary.get("stages", {}).values())


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
            runs.append((path.parent, run))
    options = find_differences([run.get("options", {}) for _, run in runs])
    rows = [_describe_run(folder, run, own) for (folder, run), own in zip(runs, options, strict=True)]
    pages = sorted((outputs / EXPERIMENTS).glob("*/experiment.html"), reverse=True)
    experiments = [path.parent.name for path in pages if not path.parent.is_symlink()]
    page = outputs / INDEX
    with write_whole(page) as partial:
        partial.write_text(load_templates().get_template("index.html.j2").render(runs=rows, experiments=experiments))
    return page


def _describe_run(folder: Path, run: Mapping[str, Any], differing: list[str]) -> Listed:
    further = {title: page for title, page in FURTHER.items() if (folder / page).is_file()}
    return Listed(folder.name, run, "" if "part" in run else "report.html", further, differing)


def _is_whole(run: Mapping[str, Any]) -> bool:
    """Return whether a summary has everything the page shows: the run's time, and either a full comparison or none."""
    return "seconds" in run and ("gain" not in run or run.keys() >= COMPARISON)
