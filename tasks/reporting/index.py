"""The page `outputs/index.html`: all runs of that folder, the newest first, with the options in which they differ."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from tasks import charts
from tasks.reporting.environment import templates
from tasks.storage.durable import whole

ABSENT = "default"
"""Text for an option that a run leaves at its default and another run does not."""

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
        partial.write_text(templates().get_template("index.html.j2").render(runs=rows, page=_page))
    return page


def differences(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return, for each run, the options in which the runs differ, as `training.steps = 4`.

    Args:
        runs: the options that are not at their defaults, by file. A run without any, of which nothing is known, has no
            differences. One that lacks a file, as a part of the pipeline may, has none in that file.
    """
    flat = [dict(_flat("", run)) for run in runs]
    differing = [
        name
        for name in dict.fromkeys(name for run in flat for name in run)
        if len(
            {run.get(name, ABSENT) for run, files in zip(flat, runs, strict=True) if name.partition(".")[0] in files}
        )
        > 1
    ]
    return [
        [f"{name} = {run.get(name, ABSENT)}" for name in differing if name.partition(".")[0] in files]
        for run, files in zip(flat, runs, strict=True)
    ]


def _is_whole(run: Mapping[str, Any]) -> bool:
    """Return whether a summary has what the page shows of a run: its time, and all of a comparison or none of it."""
    return "seconds" in run and ("gain" not in run or run.keys() >= COMPARISON)


def _flat(path: str, value: Any) -> list[tuple[str, str]]:
    """Return the values at the ends of nested mappings, as JSON text, by their dotted path.

    A list of mappings with names, such as the sources of a data file, counts as a mapping by name.
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        value = {item["name"]: {key: inner for key, inner in item.items() if key != "name"} for item in value}
    if isinstance(value, Mapping) and value:
        return [item for key, inner in value.items() for item in _flat(f"{path}.{key}" if path else str(key), inner)]
    return [(path, json.dumps(value, ensure_ascii=False))] if path else []


def _page(figures: dict[str, str], table: str) -> Markup:
    return Markup(charts.page(figures, table))  # noqa: S704 - escaped by its own template
