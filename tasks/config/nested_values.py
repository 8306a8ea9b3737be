"""Walks nested values of options or of JSON."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any


def leaves(value: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the dotted names and the values of nested options, of the section `name` or of a whole file."""
    if not isinstance(value, dict):
        yield name, value
        return
    for key, item in value.items():
        yield from leaves(item, f"{name}.{key}" if name else key)


def changed(value: Any, change: Callable[[Any], Any]) -> Any:
    """Return a value with the results of `change` for everything in it that is neither a mapping nor a list."""
    if isinstance(value, Mapping):
        return {key: changed(item, change) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [changed(item, change) for item in value]
    return change(value)
