"""`function`: a reward function of the user's own, with the signature that TRL and Axolotl call.

A ground truth is `{"function": "rewards.accuracy_reward", "columns": {"answer": "7"}}`, optionally with `digest`, the
digest of the function's file, and of the user's files that it imports, when the prompts were made. The module is
imported from the working directory or the Python path.

    def accuracy_reward(completions, answer, **kwargs) -> list[float | None]: ...

`completions` is a list of completions, each a list with one message `{"role": "assistant", "content": ...}`; `prompts`
holds the messages of their prompts, and each column a value per completion. Functions get one completion at a time, so
that a score does not depend on what else was judged with it. None means that the reward does not apply.
"""

from __future__ import annotations

import asyncio
import inspect
import math
import os
import sys
from collections.abc import Callable
from functools import cache
from typing import Any

from tasks.lineage.user_code import imported, user_code_digest
from tasks.verifiers.calls import Messages
from tasks.verifiers.scores import CannotJudge, GroundTruthError, Reward, Score

_KEYS = {"function", "columns", "digest"}


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` where the ground truth names no function; the function itself is not imported."""
    if not isinstance(ground_truth, dict) or not {"function", "columns"} <= set(ground_truth) <= _KEYS:
        raise GroundTruthError(f"want an object with 'function' and 'columns', got {ground_truth!r:.200}")
    name, columns = ground_truth["function"], ground_truth["columns"]
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise GroundTruthError(f"function must be an import path such as rewards.accuracy_reward, got {name!r}")
    if not isinstance(columns, dict) or {"completions", "prompts"} & set(columns):
        raise GroundTruthError("columns must be an object without 'completions' and 'prompts', which are given anyway")


def missing_resources(ground_truth: Any) -> list[str]:
    """Return why the function cannot be called here, or an empty list.

    It may be impossible to import, or its code may have changed since the prompts were made.
    """
    try:
        _load(ground_truth["function"], ground_truth.get("digest"))
    except CannotJudge as reason:
        return [str(reason)]
    return []


def judge(response: str, ground_truth: Any, messages: Messages | None) -> Score:
    """Call the reward function that the ground truth names, and return its value as the only reward of the score.

    `Score.value` is that value clipped to [0, 1].

    Raises:
        CannotJudge: the function cannot be imported, raised, or returned anything but one finite number or None.
    """
    check_ground_truth(ground_truth)
    name = ground_truth["function"]
    function = _load(name, ground_truth.get("digest"))
    completions = [[{"role": "assistant", "content": response}]]
    columns = {column: [value] for column, value in ground_truth["columns"].items()}
    try:
        returned = function(completions=completions, prompts=[list(messages or ())], **columns)
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:
        raise CannotJudge(f"reward function {name} raised {type(error).__name__}: {error}") from error
    value = _only_value(returned, name)
    held = min(max(value, 0.0), 1.0) if value is not None else 0.0
    return Score(held, held == 1.0, f"{name}: {value}", rewards=(Reward(name, 1.0, value),))


def warm_up() -> None:
    """Load nothing: the functions are known only when they are called."""


def function_digest(name: str) -> str:
    """Return 16 hex digits over the file that a function is in and the user's files that it imports.

    Raises:
        CannotJudge: there is no such module.
    """
    module = name.rpartition(".")[0]
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    try:
        return user_code_digest(module)
    except ImportError as error:
        raise CannotJudge(f"reward function {name}: {error} in {os.getcwd()} or the Python path") from error


@cache
def _load(name: str, digest: str | None) -> Callable[..., Any]:
    module, _, attribute = name.rpartition(".")
    if function_digest(name) != digest and digest is not None:
        raise CannotJudge(
            f"reward function {name}: its file, or one that it imports, has changed since the prompts were made: "
            "source anew"
        )
    try:
        function = getattr(imported(module), attribute)
    except Exception as error:
        raise CannotJudge(f"reward function {name} cannot be imported: {type(error).__name__}: {error}") from error
    if not callable(function):
        raise CannotJudge(f"reward function {name} is of type {type(function).__name__}, not a function")
    return function


def _only_value(returned: Any, name: str) -> float | None:
    if not isinstance(returned, list | tuple) or len(returned) != 1:
        raise CannotJudge(
            f"reward function {name} must return a list with one value per completion, got {returned!r:.100}"
        )
    if returned[0] is None:
        return None
    try:
        value = float(returned[0])
    except (TypeError, ValueError) as error:
        raise CannotJudge(f"reward function {name} returned {returned[0]!r:.100}, which is no number") from error
    if not math.isfinite(value):
        raise CannotJudge(f"reward function {name} returned {value}, which is not finite")
    return value
