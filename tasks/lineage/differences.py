"""Finds the options that differ between runs, from the options that each run changed from the defaults."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ABSENT = "default"
"""Text for an option that is at its default in a run and not in another run."""
GIVEN, NOT_GIVEN = "given", "not given"
"""Texts for a named part of a file, such as a benchmark, that some runs have and others do not."""


def find_differences(runs: Sequence[Mapping[str, Any]]) -> list[list[str]]:
    """Return for each run the options that differ between the runs, as `training.steps = 4`.

    A named part of a file, such as a source or a benchmark, that only some runs have is one line, as in
    `evaluation.benchmarks.mine = given`. Its options are compared between the runs that have it.

    Args:
        runs: the options of each run that are not at their defaults, by file. A run without options is unknown and has
            no differences. A run without a file, such as a run of a part of the pipeline, has no differences in it.
    """
    options = [_Options(run) for run in runs]
    names = dict.fromkeys(name for run in options for name in (*run.parts, *run.values))
    differing = [
        name for name in names if len({text for run in options if (text := run.describe_value(name, options))}) > 1
    ]
    return [
        [f"{name} = {text}" for name in differing if (text := run.describe_value(name, options))] for run in options
    ]


class _Options:
    """The options of a run.

    Attributes:
        values: the values of options as JSON text, by dotted path.
        parts: dotted paths of the named parts of files, which are items of lists.
    """

    def __init__(self, run: Mapping[str, Any]) -> None:
        self.values: dict[str, str] = {}
        self.parts: dict[str, None] = {}
        self._files = set(run)
        self._read("", run)

    def _read(self, path: str, value: Any) -> None:
        """Add the values of nested mappings. A list of mappings with names is treated as a mapping by name."""
        if isinstance(value, list) and value and all(isinstance(item, Mapping) and "name" in item for item in value):
            value = {item["name"]: {key: inner for key, inner in item.items() if key != "name"} for item in value}
            self.parts |= dict.fromkeys(f"{path}.{name}" for name in value)
        if isinstance(value, Mapping) and (value or path in self.parts or path in self._files):
            for key, inner in value.items():
                self._read(f"{path}.{key}" if path else str(key), inner)
        elif path:
            self.values[path] = json.dumps(_normalize(value), ensure_ascii=False)

    def describe_value(self, name: str, runs: Sequence[_Options]) -> str | None:
        """Return the value of an option or part as text, or None if the run's files say nothing about it."""
        if name.partition(".")[0] not in self._files:
            return None
        if any(name in run.parts for run in runs):
            return GIVEN if name in self.parts else NOT_GIVEN
        if any(part not in self.parts for run in runs for part in run.list_parts(name)):
            return None
        return self.values.get(name, ABSENT)

    def list_parts(self, name: str) -> Iterator[str]:
        """Yield the named parts of this run that contain an option."""
        return (part for part in self.parts if name.startswith(f"{part}."))


def _normalize(value: Any) -> Any:
    """Return a value whose paths have no `..`, so that two spellings of one path do not differ."""
    if isinstance(value, list):
        return [_normalize(item) for item in value]
    if isinstance(value, str) and {"..", "."} & set(value.split("/")) and "/" in value and "://" not in value:
        return posixpath.normpath(value)
    return value
