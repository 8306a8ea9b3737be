"""Looks up values in rows by path, and parses lists and objects from text.

A path is the name of a column, or leads into one: `reward_model.ground_truth`, `choices.0`, `ground_truth.0.kwargs`.
Text along the path is parsed as JSON or, as in open-instruct's constraints, as a Python literal.
"""

from __future__ import annotations

import ast
import json
from collections.abc import Mapping
from typing import Any

from tasks.tables.schemas import Kind

LONGEST_LITERAL = 1_000_000
"""Maximum number of characters of text that is parsed as a Python literal. JSON text has no limit."""


class UnusableError(ValueError):
    """Raised for a row that cannot become a prompt.

    Attributes:
        reason: the error of this row, to show to the user.
        value: the invalid value.
        category: the reason without details of the row. Rows are counted by category.
        kind: the kind of the error, as the table `SET_ASIDE` names it.
        prompt_id: the id of the first occurrence if the row is a duplicate.
    """

    def __init__(
        self,
        reason: str,
        value: Any,
        category: str | None = None,
        *,
        kind: Kind = "unusable",
        prompt_id: str | None = None,
    ) -> None:
        super().__init__(reason)
        self.reason, self.value, self.category = reason, value, category or reason
        self.kind, self.prompt_id = kind, prompt_id


class RepeatedKeyError(ValueError):
    """Raised if a key occurs twice in a JSON object, because only one of its values could be used."""


def build_object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object with the given keys and values.

    Raises:
        RepeatedKeyError: a key occurs twice.
    """
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        raise RepeatedKeyError(f"key {next(key for key in keys if keys.count(key) > 1)!r} occurs twice")
    return value


def get_value(row: Mapping[str, Any], path: str) -> Any:
    """Return the value of `row` at `path`, which may be None.

    If a column name contains a dot, it takes precedence over the same path.

    Raises:
        KeyError: there is no value at this path.
        UnusableError: a key occurs twice in an object along the path, which is text.
    """
    if path in row:
        return row[path]
    name, *steps = path.split(".")
    value = row[name]
    for step in steps:
        value = parse_structure(value)
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, ValueError, TypeError):
            raise KeyError(path) from None
    return value


def require_value(row: Mapping[str, Any], path: str) -> Any:
    """Return the value of `row` at `path`.

    Raises:
        UnusableError: the value is missing or null, or as `get_value` raises it.
    """
    try:
        value = get_value(row, path)
    except KeyError:
        raise UnusableError(f"column {path!r} is missing", None) from None
    if value is None:
        raise UnusableError(f"column {path!r} is null", None)
    return value


def parse_structure(value: Any) -> Any:
    """Parse a list or object from text, as JSON or a Python literal. Any other value is returned unchanged.

    Raises:
        UnusableError: a key occurs twice in an object.
    """
    if not isinstance(value, str) or value.lstrip()[:1] not in ("[", "{", '"'):
        return value
    try:
        try:
            read = json.loads(value, object_pairs_hook=build_object)
        except RepeatedKeyError:
            raise
        except (ValueError, RecursionError):
            read = _parse_literal(value)
    except RepeatedKeyError as error:
        raise UnusableError(f"{error} in an object that is text", value, "a key occurs twice in an object") from None
    if isinstance(read, str):  # JSON within JSON
        return parse_structure(read)
    return value if read is None else read


def unwrap(value: Any) -> Any:
    """Return the single item of a list of one, at any depth. Any other value is returned unchanged."""
    while isinstance(value, list) and len(value) == 1:
        value = value[0]
    return value


def root(path: str) -> str:
    """Return the column at the start of a path."""
    return path.partition(".")[0]


def _parse_literal(text: str) -> Any:
    if len(text) > LONGEST_LITERAL:
        return None
    try:
        tree = ast.parse(text.lstrip(" \t"), mode="eval")
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        return None
    for node in ast.walk(tree):
        if isinstance(node, ast.Dict):
            build_object([(ast.unparse(key), None) for key in node.keys if key is not None])
    return value
