"""The options in which runs differ, from what each has beside its defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "default"
"""Text for an option that a run leaves at its default and another run does not."""


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


def _flat(path: str, value: Any) -> list[tuple[str, str]]:
    """Return the values at the ends of nested mappings, as JSON text, by their dotted path.

    A list of mappings with names, such as the sources of a data file, counts as a mapping by name.
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        value = {item["name"]: {key: inner for key, inner in item.items() if key != "name"} for item in value}
    if isinstance(value, Mapping) and value:
        return [item for key, inner in value.items() for item in _flat(f"{path}.{key}" if path else str(key), inner)]
    return [(path, json.dumps(value, ensure_ascii=False))] if path else []
