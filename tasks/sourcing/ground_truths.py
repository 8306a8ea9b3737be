"""Extracts the ground truth of a row, in the format that its verifier expects.

The formats are defined in `tasks.verifiers.verify`: a string or list of strings for math, tests for code, constraint
ids with arguments for precise_if, a reference for chat_reference, null for chat_open, a call for function. For a custom
verifier it is the value of the column, which the verifier checks.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cache
from typing import Any

from tasks.environments.tools import describe_methods, describe_tool
from tasks.generation.environment_spec import EnvironmentSpec, ToolSpec
from tasks.sourcing.code_tests import read_tests
from tasks.sourcing.columns import IN_REWARDS, VERIFIERS, Columns
from tasks.sourcing.environment_options import EnvironmentOptions
from tasks.sourcing.integer_answers import make_whole
from tasks.sourcing.numbers import format_decimal, is_in_range
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError, get_value, parse_structure, require_value, root, unwrap
from tasks.verifiers import code
from tasks.verifiers.code.nothing import remove_free_tests
from tasks.verifiers.custom import load_own_verifier
from tasks.verifiers.functions import compute_function_digest
from tasks.verifiers.instructions.arguments import SCHEMAS, ArgumentsError, normalize
from tasks.verifiers.scores import GroundTruthError, is_own

_DEFAULT_COLUMN = Columns().ground_truth
# Types in the form that `isinstance` takes without making a union for each row.
_DECIMALS = (float, Decimal)
_WRITTEN = (str, int, *_DECIMALS)


def choose_verifier(row: Mapping[str, Any], source: SourceSpec) -> str:
    """Return the verifier of a row.

    Raises:
        UnusableError: `row_verifier` does not map the value of the row's column.
    """
    by_row = source.row_verifier
    if by_row is None:
        assert source.verifier is not None
        return source.verifier
    name = unwrap(require_value(row, by_row.column))
    if not isinstance(name, str) or name not in by_row.names:
        reason = f"{by_row.column} = {name!r} is not one of {', '.join(by_row.names)}"
        raise UnusableError(reason, name, f"{by_row.column} names no verifier of row_verifier")
    return by_row.names[name]


def graded(row: Mapping[str, Any], source: SourceSpec) -> tuple[str, Any]:
    """Return the verifier that scores a row's responses, and the row's ground truth.

    If the source has several rewards, the verifier is `weighted`, and the ground truth contains that of each reward.

    Raises:
        UnusableError: the row has no ground truth that the verifiers can use.
    """
    verifier = choose_verifier(row, source)
    truth = _add_mode(ground_truth(row, verifier, source.columns), source)
    if not source.rewards:
        return verifier, truth
    own = {"verifier": verifier, "weight": source.weight, "ground_truth": truth}
    parts = [] if verifier in IN_REWARDS else [own]
    for reward in source.rewards:
        if reward.reward_model is not None:
            part = {"verifier": "reward_model", "ground_truth": {"reward_model": reward.reward_model}}
        elif reward.verifier is not None:
            part = {"verifier": reward.verifier, "ground_truth": ground_truth(row, reward.verifier, source.columns)}
        else:
            assert reward.function is not None
            plain = truth["ground_truth"] if is_own(verifier) else truth
            handed = {name: require_value(row, name) for name in reward.columns} | {"ground_truth": plain}
            digest = compute_function_digest(reward.function)
            call: dict[str, Any] = {"function": reward.function, "columns": handed, "digest": digest}
            call |= {"group": True} if reward.group else {}
            part = {"verifier": "function", "ground_truth": call}
        parts.append(part | {"weight": reward.weight})
    if verifier in IN_REWARDS and len(parts) == 1 and parts[0]["weight"] == 1:
        return verifier, parts[0]["ground_truth"]
    return "weighted", {"rewards": parts}


def build_environment(row: Mapping[str, Any], source: SourceSpec) -> str | None:
    """Return the environment of a row, as text for the column `environment`, or None if the source has none.

    Raises:
        UnusableError: the row lacks a column that is passed to the environment.
        CannotJudge: there is no such module, or a tool cannot be described.
    """
    options = source.environment
    if options is None:
        return None
    path = options.path
    return EnvironmentSpec(
        path=path,
        columns=options.options | {name: require_value(row, name) for name in options.columns},
        turns=options.turns,
        turn_tokens=options.turn_tokens,
        seconds=options.seconds,
        digest=compute_function_digest(path, "environment"),
        tools=_describe_tools(options),
        tool_parser=options.tool_parser,
        tool_pattern=options.tool_pattern,
    ).to_json()


def _describe_tools(options: EnvironmentOptions) -> list[ToolSpec]:
    tools = [_described(path) for path in options.tools]
    return tools if options.factory is None else _described_methods(options.factory)


_described, _described_methods = cache(describe_tool), cache(describe_methods)


def _add_mode(truth: Any, source: SourceSpec) -> Any:
    if source.mode is None:
        return truth
    return {"answer": truth, "mode": source.mode} if source.verifier == "math" else truth | {"mode": source.mode}


def ground_truth(row: Mapping[str, Any], verifier: str, columns: Columns) -> Any:
    """Return the row's ground truth as a JSON value.

    Raises:
        UnusableError: the row has no ground truth that `verifier` can use.
    """
    if verifier in VERIFIERS:
        return _read_builtin(row, verifier, columns)
    return _check_own(_read_argument(row, columns), verifier)


def _read_builtin(row: Mapping[str, Any], verifier: str, columns: Columns) -> Any:
    match verifier:
        case "math":
            answer = _read_answer(row, columns)
            return _make_whole(answer)[0] if columns.integer_answers else answer
        case "code":
            return _read_tests(row, columns)
        case "precise_if":
            return _read_constraints(row, columns)
        case "chat_reference":
            return {"reference": _extract_answer(unwrap(require_value(row, columns.ground_truth)), columns)}
        case "chat_open" | "environment":
            return None
        case _:
            assert verifier in IN_REWARDS, "the spec has checked the name"
            return _read_argument(row, columns)


def ask_for_integer(row: Mapping[str, Any], verifier: str, columns: Columns) -> str:
    """Return the text that asks for a whole number (`integer_answers`), which is empty if it is not needed."""
    return _make_whole(_read_answer(row, columns))[1] if columns.integer_answers and verifier == "math" else ""


def _read_argument(row: Mapping[str, Any], columns: Columns) -> Any:
    """Return the `ground_truth` argument of user functions, or None if the row has none and none is required."""
    if columns.ground_truth == _DEFAULT_COLUMN and root(columns.ground_truth) not in row:
        return None
    value = require_value(row, columns.ground_truth)
    return value if columns.ground_truth_pattern is None else _extract_answer(unwrap(value), columns)


def _check_own(value: Any, verifier: str) -> dict[str, Any]:
    """Return the ground truth of a custom verifier, after the verifier has checked it."""
    try:
        return load_own_verifier(verifier).checked(value)
    except GroundTruthError as refusal:
        reason = f"verifier {verifier} refuses the ground truth"
        raise UnusableError(f"{reason}: {refusal.reason}", value, reason, kind="ground_truth") from None


def _make_whole(answer: str | list[str]) -> tuple[str, str]:
    if isinstance(answer, list):
        raise UnusableError("several answers, of which integer_answers cannot make one", answer)
    return make_whole(answer)


def _read_answer(row: Mapping[str, Any], columns: Columns) -> str | list[str]:
    value = require_value(row, columns.ground_truth)
    value = unwrap(value)
    if not isinstance(value, list):
        return _extract_answer(value, columns)
    if not value:
        raise UnusableError("the list of answers is empty", value)
    return [_extract_answer(answer, columns) for answer in value]


def _extract_answer(value: Any, columns: Columns) -> str:
    """Return the answer inside a value: its text, or the match of `ground_truth_pattern`."""
    if isinstance(value, bool) or not isinstance(value, _WRITTEN):
        raise UnusableError("the ground truth is neither text nor a number", value)
    if isinstance(value, _DECIMALS) and not is_in_range(value):
        outside = "NaN" if math.isnan(value) else "Infinity" if math.isinf(value) else "a number so close to 0"
        raise UnusableError(f"column {columns.ground_truth!r}: {outside} is not a JSON number", str(value))
    text = format_decimal(value) if isinstance(value, _DECIMALS) else str(value)
    if columns.ground_truth_pattern is not None:
        matches = list(re.finditer(columns.ground_truth_pattern, text))
        if not matches:
            raise UnusableError("ground_truth_pattern finds nothing in the ground truth", value)
        text = matches[-1].group(matches[-1].re.groups) or ""
    if not text.strip():
        raise UnusableError("the ground truth is empty", value)
    return text.strip()


def _read_tests(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    setup, given = (
        get_value(row, name) if name is not None and root(name) in row else None
        for name in (columns.setup, columns.given)
    )
    return read_tests(require_value(row, columns.tests), setup, given)


def drop_free_tests(truth: dict[str, Any]) -> bool:
    """Change the tests of a ground truth so that each one needs a response. Return False if no sandbox can check this.

    Tests that an empty program passes are merged into other tests.

    Raises:
        UnusableError: the tests cannot be run, or an empty program passes all of them.
    """
    try:
        code.check_ground_truth(truth)
    except GroundTruthError as refusal:
        reason = "tests that cannot be scored"
        raise UnusableError(f"{reason}: {refusal.reason}", truth, reason, kind="ground_truth") from None
    needing = remove_free_tests(truth)
    if needing is None:
        return False
    if "tests" in needing and not needing["tests"]:
        raise UnusableError("tests that pass without a response", truth, kind="ground_truth")
    truth.update(needing)
    return True


def _read_constraints(row: Mapping[str, Any], columns: Columns) -> dict[str, Any]:
    ids = parse_structure(require_value(row, columns.instruction_ids))
    kwargs = parse_structure(require_value(row, columns.kwargs))
    if not isinstance(ids, list) or not ids:
        raise UnusableError("the constraint ids are not a list with at least one", ids)
    if not isinstance(kwargs, list):
        raise UnusableError("the constraint arguments are not a list", kwargs)
    if len(ids) != len(kwargs):
        reason = f"{len(ids)} constraint ids but {len(kwargs)} sets of arguments"
        raise UnusableError(reason, kwargs, "as many constraint ids as sets of arguments are needed")
    return {"instruction_ids": ids, "kwargs": [_normalize_arguments(*pair) for pair in zip(ids, kwargs, strict=True)]}


def _normalize_arguments(name: Any, given: Any) -> dict[str, Any]:
    """Return the arguments of one constraint, in the format that its checker expects."""
    if not isinstance(name, str) or name not in SCHEMAS:
        raise UnusableError(f"unknown constraint {name!r}", name, "unknown constraint")
    try:
        return normalize(name, {} if given is None else given)
    except ArgumentsError as reason:
        raise UnusableError(str(reason), given) from None
