"""What a row holds under a path, and what stands in its text.

A path is the name of a column, or leads into one: `reward_model.ground_truth`, `choices.0`, `ground_truth.0.kwargs`.
Text on the way is read as JSON or, as open-instruct writes its constraints, as a Python literal.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

LONGEST_LITERAL = 1_000_000
"""Characters of text that are read as a Python literal; JSON has no bound."""


class UnusableError(ValueError):
    """Why a row cannot become a prompt.

    Attributes:
        reason: for people, about this row.
        value: what is at fault.
        kind: the reason without what is particular to the row, to count by.
    """

    def __init__(self, reason: str, value: Any, kind: str | None = None) -> None:
        super().__init__(reason)
        self.reason, self.value, self.kind = reason, value, kind or reason


def value_at(row: Mapping[str, Any], path: str) -> Any:
    """What `row` has under `path`, None included; raises `KeyError` where it has nothing there.

    A column whose name holds a dot goes before what a path of that name leads to.
    """
    if path in row:
        return row[path]
    name, *steps = path.split(".")
    value = row[name]
    for step in steps:
        value = structure(value)
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise KeyError(path) from None
    return value


def present(row: Mapping[str, Any], path: str) -> Any:
    """What `row` has under `path`; raises `UnusableError` where that is nothing, or null."""
    try:
        value = value_at(row, path)
    except KeyError:
        raise UnusableError(f"column {path!r} is missing", None) from None
    if value is None:
        raise UnusableError(f"column {path!r} is null", None)
    return value


def structure(value: Any) -> Any:
    """The list or object that a text says, as JSON or as a Python literal; what is none comes back as it is."""
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{", '"'):
        return value
    try:
        read = json.loads(value)
    except (ValueError, RecursionError):
        read = _literal(value)
    if isinstance(read, str):  # JSON within JSON
        return structure(read)
    return value if read is None else read


def only(value: Any) -> Any:
    """The item of a list of one, at any depth; anything else as it is."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def root(path: str) -> str:
    """The column that a path begins at."""
    return path.partition(".")[0]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text) if len(text) <= LONGEST_LITERAL else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
