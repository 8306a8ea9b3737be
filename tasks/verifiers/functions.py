"""Verifier `function`: calls a user's reward function, with the signature that TRL and Axolotl use.

A ground truth is `{"function": "rewards.accuracy_reward", "columns": {"answer": "7"}}`, optionally with `digest`. This
is the digest of the function's file, and of the user's files that it imports, when the prompts were made. The module is
imported from the working directory or the Python path.

    def accuracy_reward(completions, answer, **kwargs) -> list[float | None]: ...

`completions` is a list of completions, each a list with one message `{"role": "assistant", "content": ...}`; `prompts`
contains the messages of their prompts, and each column a value per completion. None means that the reward does not
apply. A function gets one completion at a time, so that a score does not depend on what else was scored with it. With
`"group": true` it gets all completions of a prompt in one call (`tasks.verifiers.grouped`).

A failure is attributed to the function and is never a score of 0: an exception, a result of another form, or an
exceeded limit of time or memory. It is final, because it would happen again, unless it was caused by the network or a
service that the function uses (`FunctionFailure.may_pass`).
"""

from __future__ import annotations

import asyncio
import inspect
import math
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

from tasks.failures import find_infrastructure_cause, one_line
from tasks.lineage.user_code import find_line, import_user_module, user_code_digest
from tasks.verifiers.calls import Messages, Response
from tasks.verifiers.scores import CannotJudge, FunctionFailure, GroundTruthError, Reward, Score, SlowCall

SLOW_SECONDS = 5.0
"""Minimum duration of one call, in seconds, for which a function is logged as slow."""

_KEYS = {"function", "columns", "digest", "group"}
_PASSING_STATUS = {408, 425, 429}
"""HTTP status codes below 500 after which the same request may succeed later."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` if the ground truth names no function; the function itself is not imported."""
    if not isinstance(ground_truth, dict) or not {"function", "columns"} <= set(ground_truth) <= _KEYS:
        raise GroundTruthError(f"expected an object with 'function' and 'columns', got {ground_truth!r:.200}")
    name, columns = ground_truth["function"], ground_truth["columns"]
    if not isinstance(name, str) or not all(part.isidentifier() for part in name.split(".")) or "." not in name:
        raise GroundTruthError(f"function must be an import path such as rewards.accuracy_reward, got {name!r}")
    if not isinstance(columns, dict) or {"completions", "prompts"} & set(columns):
        raise GroundTruthError("columns must be an object without 'completions' and 'prompts', which are given anyway")
    if ground_truth.get("group", True) is not True:
        raise GroundTruthError(f"group is true, or not given, got {ground_truth['group']!r}")


def missing_resources(ground_truth: Any) -> list[str]:
    """Return why the function cannot be called here, or an empty list.

    The import may fail, or its code may have changed since the prompts were made.
    """
    try:
        load(ground_truth["function"], ground_truth.get("digest"))
    except CannotJudge as reason:
        return [str(reason)]
    return []


def judge(response: Response, ground_truth: Any, messages: Messages | None) -> Score:
    """Call the reward function that the ground truth names, and return its value as the only reward of the score.

    `Score.value` is that value clipped to [0, 1]. For a function of a group, the score has a reward for each response
    and no value: `tasks.verifiers.grouped` turns it into one score per response.

    Raises:
        CannotJudge: the function cannot be imported, raised, or returned anything but one finite number or None for
            each response; or it takes a group and was called with one response, or the reverse.
    """
    function, name, arguments = _prepare_call(response, ground_truth, messages)
    began = time.monotonic()
    with _attributing_errors(name, function):
        returned = function(**arguments)
        if inspect.iscoroutine(returned):
            returned = asyncio.run(returned)
    return _score(returned, ground_truth, len(arguments["completions"]), time.monotonic() - began)


async def judge_overlapping(response: Response, ground_truth: Any, messages: Messages | None) -> Score | None:
    """Do as `judge` does on the running event loop, while other calls wait. Return None if the function is not async.

    Raises:
        CannotJudge: as `judge` does.
    """
    function, name, arguments = _prepare_call(response, ground_truth, messages)
    if not inspect.iscoroutinefunction(function):
        return None
    began = time.monotonic()
    with _attributing_errors(name, function):
        returned = await function(**arguments)
    return _score(returned, ground_truth, len(arguments["completions"]), time.monotonic() - began)


@contextmanager
def _attributing_errors(name: str, function: Callable[..., Any]) -> Iterator[None]:
    """Raise `CannotJudge` for an error of a function, except for a lack of memory, which ends its process."""
    try:
        yield
    except MemoryError:
        raise
    except (Exception, SystemExit) as error:
        raise _convert_error(name, function, error) from error


def _prepare_call(
    response: Response, ground_truth: Any, messages: Messages | None
) -> tuple[Callable[..., Any], str, dict[str, Any]]:
    """Return the function, its name, and its arguments."""
    check_ground_truth(ground_truth)
    name = ground_truth["function"]
    if isinstance(response, str) == ("group" in ground_truth):
        takes = "all responses to a prompt in one call" if "group" in ground_truth else "one response at a time"
        raise _failed(name, f" takes {takes}")
    texts = [response] if isinstance(response, str) else response
    function = load(name, ground_truth.get("digest"))
    completions = [[{"role": "assistant", "content": text}] for text in texts]
    columns = {column: [value for _ in texts] for column, value in ground_truth["columns"].items()}
    return function, name, {"completions": completions, "prompts": [list(messages or ()) for _ in texts], **columns}


def _score(returned: Any, ground_truth: Any, completions: int, seconds: float) -> Score:
    """Return the score for what a function returned after this many seconds."""
    name = ground_truth["function"]
    values = _parse_values(returned, name, completions)
    rewards = tuple(Reward(name, 1.0, value) for value in values)
    slow = SlowCall(name, seconds) if seconds >= SLOW_SECONDS else None
    if "group" in ground_truth:
        return Score(0.0, False, f"returned {len(values)} rewards", rewards=rewards, slow=slow)
    held = min(max(values[0] or 0.0, 0.0), 1.0)
    return Score(held, held == 1.0, f"returned {values[0]}", rewards=rewards, slow=slow)


def add_failure(score: Score, ground_truth: Any) -> Score:
    """Return the score of a function call; if the worker process gave none, return a failure of the function.

    For other verifiers, a worker that exceeds its time or memory, or dies, means that the response scores 0.
    """
    if score.rewards or score.failure is not None or (score.error is not None and not score.timed_out):
        return score
    name, reason = ground_truth["function"], score.error or score.detail
    failure = FunctionFailure(name, reason, may_pass=score.error is not None)  # it was waiting, perhaps for a service
    return Score.from_error(f"reward function {name}: {reason}", failure, timed_out=score.timed_out)


def warm_up() -> None:
    """Load nothing: the functions are known only when they are called."""


def compute_function_digest(name: str, what: str = "reward function") -> str:
    """Return 16 hex digits: the digest of the file that contains a function and the user's files that it imports.

    `what` names the kind of function in error messages.

    Raises:
        CannotJudge: there is no such module.
    """
    try:
        return user_code_digest(name.rpartition(".")[0])
    except ImportError as error:
        raise CannotJudge.of_code(what, name, f": {error}") from error


@cache
def load(name: str, digest: str | None, what: str = "reward function") -> Callable[..., Any]:
    """Import and return a user's function.

    Args:
        name: its import path.
        digest: digest of its code when the prompts were made (`compute_function_digest`). Optional. If None, it is not
            checked.
        what: the kind of function, for error messages.

    Raises:
        CannotJudge: it cannot be imported, is not a function, or has changed.
    """
    module, _, attribute = name.rpartition(".")
    if compute_function_digest(name, what) != digest and digest is not None:
        reason = ": its file, or one that it imports, has changed since the prompts were made: read the source again"
        raise CannotJudge.of_code(what, name, reason)
    try:
        function = getattr(import_user_module(module), attribute)
    except (Exception, SystemExit) as error:
        reason = f" cannot be imported: {type(error).__name__}: {one_line(error)}{find_line(error, module)}"
        raise CannotJudge.of_code(what, name, reason) from error
    if not callable(function):
        raise CannotJudge.of_code(what, name, f" is of type {type(function).__name__}, not a function")
    return function


def _parse_values(returned: Any, name: str, completions: int) -> list[float | None]:
    if not isinstance(returned, list | tuple) or len(returned) != completions:
        of_group = f" for {completions} completions" if completions > 1 else ""
        got = f", got {one_line(repr(returned), 100)}{of_group}"
        raise _failed(name, " must return a list with one value per completion", got)
    return [_parse_number(value, name) for value in returned]


def _parse_number(returned: Any, name: str) -> float | None:
    if returned is None:
        return None
    try:
        value = float(returned)
    except (TypeError, ValueError) as error:
        raise _failed(name, " must return numbers", f", got {one_line(repr(returned), 100)}") from error
    if not math.isfinite(value):
        raise _failed(name, f" returned {value}, which is not finite")
    return value


def _convert_error(name: str, function: Callable[..., Any], error: BaseException) -> CannotJudge:
    line = find_line(error, name.rpartition(".")[0], function)
    kind = type(error).__name__
    failure = FunctionFailure(name, f"raised {kind}{line}", may_pass=is_transient(error))
    text = one_line(error)
    return CannotJudge(f"reward function {name} raised {kind}{f': {text}' if text else ''}{line}", failure)


_failed = partial(CannotJudge.of_code, "reward function")


def is_transient(error: BaseException) -> bool:
    """Return whether the network or a service caused an exception of a user's code, so that it may be transient."""
    status = _read_status(error)
    if status is not None:
        return status >= 500 or status in _PASSING_STATUS
    inner = getattr(error, "reason", None)  # of `urllib.error.URLError`
    causes = [error, *([inner] if isinstance(inner, BaseException) else [])]
    return any(isinstance(cause, socket.gaierror) or find_infrastructure_cause(cause) is not None for cause in causes)


def _read_status(error: BaseException) -> int | None:
    """Return the HTTP status that an exception of requests, httpx, aiohttp, openai or urllib reports, or None."""
    values = (
        getattr(owner, name, None)
        for owner in (error, getattr(error, "response", None))
        for name in ("status_code", "status", "code")
    )
    return next((value for value in values if isinstance(value, int) and 400 <= value < 600), None)
