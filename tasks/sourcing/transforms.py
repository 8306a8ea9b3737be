"""Functions of the user that rewrite rows: `transform: my_module.f`.

    def f(row: dict) -> dict | None: ...

It gets each row by column, as the loader gives it, and returns the row to use in its place, or None to set it aside. It
must return the same for the same row: a cached table is not made again.
"""

from __future__ import annotations

import importlib
import json
from collections.abc import Callable, Iterator
from typing import Any

from tasks.config import SpecError
from tasks.sourcing.files import Item
from tasks.verifiers.functions import function_digest
from tasks.verifiers.scores import CannotJudge

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]


def transform_digest(name: str, where: str) -> str:
    """Identity of the file that a transform comes from; raises `SpecError` where there is none."""
    try:
        return function_digest(name)
    except CannotJudge as error:
        raise SpecError(f"{where} = {name!r}: {error}") from None


def transformed(rows: Iterator[Item], name: str, where: str) -> Iterator[Item]:
    """The rows as the function `name` makes them; raises `SpecError` where it cannot be imported or returns no row."""
    function = _loaded(name, where)
    for row in rows:
        yield _applied(function, row, name, where) if isinstance(row, dict) else row


def _loaded(name: str, where: str) -> Transform:
    transform_digest(name, where)
    module, _, attribute = name.rpartition(".")
    try:
        function: Transform = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise SpecError(f"{where} = {name!r}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise SpecError(f"{where} = {name!r}: is of type {type(function).__name__}, not a function")
    return function


def _applied(function: Transform, row: dict[str, Any], name: str, where: str) -> Item:
    try:
        made = function(row)
    except Exception as error:
        return f"{name} raised {type(error).__name__}: {error}", json.dumps(row, default=str)
    if made is None:
        return f"{name} set it aside", json.dumps(row, default=str)
    if not isinstance(made, dict):
        raise SpecError(f"{where} = {name!r}: returned {type(made).__name__} for a row; must be a dict or None")
    return made
