"""The ground truth of a row, in the form that its verifier takes, or the reason why there is none.

The forms are those of `tasks.verifiers.verify`: a string or list of strings for math, tests for code, constraint ids
with arguments for precise_if, a reference for chat_reference, null for chat_open.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

from tasks.sourcing.spec import Columns, SourceSpec, Verifier
from tasks.verifiers.functions import function_digest
from tasks.verifiers.instructions.arguments import SCHEMAS, ArgumentsError, normalized


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


def graded(row: Mapping[str, Any], source: SourceSpec) -> tuple[str, Any]:
    """The verifier that judges a row's responses, and its ground truth: several in one where the source has rewards.

    Raises `UnusableError` when the row has no ground truth that the verifiers could use.
    """
    truth = _with_mode(ground_truth(row, source.verifier, source.columns), source)
    if not source.rewards:
        return source.verifier, truth
    parts = [{"verifier": source.verifier, "weight": source.weight, "ground_truth": truth}]
    for reward in source.rewards:
        if reward.verifier is not None:
            part = {"verifier": reward.verifier, "ground_truth": ground_truth(row, reward.verifier, source.columns)}
        else:
            assert reward.function is not None
            handed = {name: _present(row, name) for name in reward.columns} | {"ground_truth": truth}
            digest = function_digest(reward.function)
            call = {"function": reward.function, "columns": handed, "digest": digest}
            part = {"verifier": "function", "ground_truth": call}
        parts.append(part | {"weight": reward.weight})
    return "weighted", {"rewards": parts}


def _with_mode(truth: Any, source: SourceSpec) -> Any:
    if source.mode is None:
        return truth
    return {"answer": truth, "mode": source.mode} if source.verifier == "math" else truth | {"mode": source.mode}


def ground_truth(row: Mapping[str, Any], verifier: Verifier, columns: Columns) -> Any:
    """The row's ground truth as a JSON value; raises `UnusableError` when it has none that `verifier` could use."""
    match verifier:
        case "math":
            return _answer(row, columns)
        case "code":
            return _tests(row, columns)
        case "precise_if":
            return _constraints(row, columns)
        case "chat_reference":
            return {"reference": _extracted(_present(row, columns.ground_truth), columns)}
        case "chat_open":
            return None


def _present(row: Mapping[str, Any], column: str) -> Any:
    if row.get(column) is None:
        kind = f"column {column!r} is {'null' if column in row else 'missing'}"
        raise UnusableError(kind, None)
    return row[column]


def _answer(row: Mapping[str, Any], columns: Columns) -> str | list[str]:
    value = _present(row, columns.ground_truth)
    if not isinstance(value, list):
        return _extracted(value, columns)
    if not value:
        raise UnusableError("the list of answers is empty", value)
    return [_extracted(each, columns) for each in value]


def _extracted(value: Any, columns: Columns) -> str:
    """The answer inside a value: its text, or what `ground_truth_pattern` finds in it."""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise UnusableError("the ground truth is neither text nor a number", value)
    if isinstance(value, float) and not math.isfinite(value):
        raise UnusableError("the ground truth is not a finite number", value)
    text = str(value)
    if columns.ground_truth_pattern is not None:
        found = list(re.finditer(columns.ground_truth_pattern, text))
        if not found:
            raise UnusableError("ground_truth_pattern finds nothing in the ground truth", value)
        text = found[-1].group(found[-1].re.groups) or ""
    if not text.strip():
        raise UnusableError("the ground truth is empty", value)
    return text.strip()


def _tests(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    tests = _present(row, columns.tests)
    if not isinstance(tests, list) or not tests:
        raise UnusableError("code without tests: not a list with at least one", tests)
    if all(isinstance(test, str) and test.strip() for test in tests):
        setup = row.get(columns.setup) if columns.setup is not None else None
        if setup is not None and not isinstance(setup, str):
            raise UnusableError("the setup code is not text", setup)
        return {"tests": tests, "setup": setup or ""}
    pairs = [test for test in tests if isinstance(test, dict) and test.keys() == {"input", "output"}]
    if len(pairs) == len(tests) and all(isinstance(text, str) for pair in pairs for text in pair.values()):
        return {"cases": pairs}
    raise UnusableError("tests are neither all assertions nor all {input, output} pairs of text", tests)


def _constraints(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    ids, kwargs = _present(row, columns.instruction_ids), _present(row, columns.kwargs)
    if not isinstance(ids, list) or not ids:
        raise UnusableError("the constraint ids are not a list with at least one", ids)
    if not isinstance(kwargs, list):
        raise UnusableError("the constraint arguments are not a list", kwargs)
    if len(ids) != len(kwargs):
        reason = f"{len(ids)} constraint ids but {len(kwargs)} sets of arguments"
        raise UnusableError(reason, kwargs, "as many constraint ids as sets of arguments are needed")
    return {"instruction_ids": ids, "kwargs": [_arguments(*pair) for pair in zip(ids, kwargs, strict=True)]}


def _arguments(name: Any, given: Any) -> dict[str, Any]:
    """The arguments of one constraint, in the form that its checker takes."""
    if not isinstance(name, str) or name not in SCHEMAS:
        raise UnusableError(f"unknown constraint {name!r}", name, "unknown constraint")
    try:
        return normalized(name, {} if given is None else given)
    except ArgumentsError as reason:
        raise UnusableError(str(reason), given) from None
