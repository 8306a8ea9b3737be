"""Applies the user's function that rewrites rows: `transform: my_module.f`.

    def f(row: dict) -> dict | None: ...

The function gets each row by column, as the loader returns it, and returns the row to use instead, or None to drop the
row. It must be deterministic: a cached table is only computed again if the function's file, or a user file that it
imports, has changed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any

from tasks.config.loading import SpecError
from tasks.lineage.user_code import import_user_module
from tasks.sourcing.files import Item, Malformed
from tasks.verifiers.functions import compute_function_digest
from tasks.verifiers.scores import CannotJudge

Transform = Callable[[dict[str, Any]], dict[str, Any] | None]


def compute_transform_digest(name: str, where: str) -> str:
    """Return the digest of the transform `name`, computed from its file and the user's files that it imports.

    Raises:
        SpecError: there is no such module.
    """
    try:
        return compute_function_digest(name)
    except CannotJudge as error:
        raise SpecError(f"{where} = {name!r}: {error}") from None


def apply_transform(rows: Iterator[Item], name: str, where: str) -> Iterator[Item]:
    """Yield the rows that the function `name` returns for `rows`, or `Malformed` if it fails on a row or drops it.

    Raises:
        SpecError: the function cannot be imported, or returns something other than a row or None.
    """
    function = _load(name, where)
    for row in rows:
        yield _apply(function, row, name, where) if isinstance(row, dict) else row


def _load(name: str, where: str) -> Transform:
    compute_transform_digest(name, where)
    module, _, attribute = name.rpartition(".")
    try:
        function: Transform = getattr(import_user_module(module), attribute)
    except Exception as error:
        raise SpecError(f"{where} = {name!r}: cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise SpecError(f"{where} = {name!r}: is of type {type(function).__name__}, not a function")
    return function


def _apply(function: Transform, row: dict[str, Any], name: str, where: str) -> Item:
    try:
        made = function(row)
    except Exception as error:
        raised = f"{name} raised {type(error).__name__}"
        return Malformed(f"{raised}: {error}", raised, json.dumps(row, default=str))
    if made is None:
        reason = f"{name} set it aside"
        return Malformed(reason, reason, json.dumps(row, default=str))
    if not isinstance(made, dict):
        raise SpecError(f"{where} = {name!r}: returned {type(made).__name__} for a row; must be a dict or None")
    return made
