"""Finds the options that differ between runs, from the options that each run changed from the defaults."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

ABSENT = "default"
"""Text for an option that is at its default in a run and not in another run."""


def differences(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return for each run the options that differ between the runs, as `training.steps = 4`.

    Args:
        runs: the options of each run that are not at their defaults, by file. A run without options is unknown and has
            no differences. A run without a file, such as a run of a part of the pipeline, has no differences in it.
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
    """Return the leaf values of nested mappings as JSON text, by dotted path.

    A list of mappings with names, such as the sources of a data file, is treated as a mapping by name.
    """
    if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
        value = {item["name"]: {key: inner for key, inner in item.items() if key != "name"} for item in value}
    if isinstance(value, Mapping) and value:
        return [item for key, inner in value.items() for item in _flat(f"{path}.{key}" if path else str(key), inner)]
    return [(path, json.dumps(value, ensure_ascii=False))] if path else []
