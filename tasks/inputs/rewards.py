"""Calls the reward functions of a source on dummy responses to its first rows, before anything is sampled.

A function is called as in every stage: in a worker process, under the limits of the data file, with the columns and
answer of a real row. Only the responses are dummies: an empty text, a sentence, and the row's own answer. A group
reward function is called with all three, with two, and then with one, as in a stage with one sample.

A policy could write any of them, but a function may have good reason to reject one, so one failure proves nothing. A
function is refused if it fails on all dummy responses, and also on the responses to other rows. In that case its
signature, its import, its return value or its code is wrong. A function that fails on some responses is named in the
log. So is a service that is unavailable, because it may be up later, or only be reachable from the cluster.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.sourcing import ground_truths, loaders
from tasks.sourcing.files import Malformed
from tasks.sourcing.messages import build_chat
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError
from tasks.verifiers import Call, Score, VerifierPool
from tasks.verifiers.calls import Messages, Response
from tasks.verifiers.scores import CannotJudge

logger = logging.getLogger(__name__)

ROWS = 3
"""Maximum number of rows on whose dummy responses a function must fail before it is refused."""
SENTENCE = "I do not know."
"""The dummy response without an answer."""
ANSWER = "The answer is \\boxed{{{0}}}.\n<answer>{0}</answer>"
"""The dummy response with the answer of its row."""
UNKNOWN = "42"
"""The dummy answer or column value if a row has none."""


class _Function(NamedTuple):
    """A reward function: its import path, and whether it scores a group."""

    name: str
    group: bool


class _Row(NamedTuple):
    """A row as passed to the reward functions of its source: the ground truth for each function, and the prompt."""

    truths: dict[_Function, Any]
    messages: Messages


def check_rewards(source: SourceSpec, rows: list[loaders.Row], data: DataFile) -> None:
    """Call each reward function of a source on dummy responses to its first rows.

    Args:
        source: the source.
        rows: its first rows.
        data: the data file, for its name and the limits of the verifiers.

    Raises:
        SpecError: a function fails on all of them. The message contains its name, the exception and the line.
    """
    functions = [_Function(reward.function, reward.group) for reward in source.rewards if reward.function is not None]
    if not functions:
        return
    where = f"{data.name}: source {source.name!r}"
    try:
        usable = _find_usable(source, rows) or [_make_up_row(source)]
    except CannotJudge as reason:
        raise SpecError(f"{where}: {reason}") from None
    with VerifierPool(1, data.verifiers.model_copy(update={"judge": None, "reward_models": {}})) as pool:
        for function in dict.fromkeys(functions):
            _check(pool, function, usable, where)


def _check(pool: VerifierPool, function: _Function, rows: list[_Row], where: str) -> None:
    """Call a function on responses to row after row until it succeeds on one. Raises `SpecError` if it always fails."""
    failed: list[Score] = []
    for row in rows:
        scores = [pool.submit(*call).result() for call in _make_calls(function, row)]
        away = next((score for score in scores if score.failure is not None and score.failure.may_pass), None)
        if away is not None:
            logger.warning("%s: it could not be tested here: %s", where, away.error)
            return
        failed += [score for score in scores if score.failure is not None]
        if any(score.failure is None for score in scores):
            break
    else:
        kind = "groups of responses" if function.group else "responses"
        raise SpecError(f"{where}: {failed[0].error}; it fails like this on each of {len(failed)} dummy {kind}")
    if failed:
        kind = "group of responses" if function.group else "response"
        logger.warning("%s: %s; it fails like this on one dummy %s, not on others", where, failed[0].error, kind)
    elif function.group:
        alone = pool.submit("function", [SENTENCE], rows[0].truths[function], rows[0].messages).result()
        if alone.error is not None:
            reason = "it fails on a group of one response, which a stage has with samples: 1"
            logger.warning("%s: %s; %s", where, alone.error, reason)


def _make_calls(function: _Function, row: _Row) -> Iterator[Call]:
    truth = row.truths[function]
    texts = ["", SENTENCE, ANSWER.format(_answer(truth["columns"].get("ground_truth")))]
    responses: list[Response] = [texts, texts[1:]] if function.group else [*texts]
    for response in responses:
        yield Call("function", response, truth, row.messages)


def _answer(truth: Any) -> str:
    """Return the answer of a correct response, if the ground truth contains it literally."""
    if isinstance(truth, dict):
        truth = truth.get("answer", truth.get("reference"))
    if isinstance(truth, list):
        truth = truth[0] if truth else None
    return UNKNOWN if truth is None or isinstance(truth, dict | list) else str(truth)


def _find_usable(source: SourceSpec, rows: list[loaders.Row]) -> list[_Row]:
    """Return up to `ROWS` first rows that become prompts. Raises `CannotJudge` if a function's module is missing."""
    usable: list[_Row] = []
    for row in rows:
        if isinstance(row.content, Malformed) or len(usable) == ROWS:
            continue
        try:
            verifier, truth = ground_truths.graded(row.content, source)
            messages = build_chat(row.content, source.columns, "", "").messages
            truth = json.loads(json.dumps(truth))  # as a stage reads it from a table
        except (UnusableError, TypeError, ValueError):
            continue
        usable.append(_Row(_make_truths(verifier, truth), messages))
    return usable


def _make_truths(verifier: str, truth: Any) -> dict[_Function, Any]:
    parts = [truth] if verifier == "function" else [part["ground_truth"] for part in truth["rewards"]]
    called = [part for part in parts if isinstance(part, dict) and "function" in part]
    return {_Function(part["function"], "group" in part): part for part in called}


def _make_up_row(source: SourceSpec) -> _Row:
    """Return a row with text in every column, for a source whose first rows do not become prompts."""
    truths = {
        _Function(reward.function, reward.group): {
            "function": reward.function,
            "columns": dict.fromkeys([*reward.columns, "ground_truth"], UNKNOWN),
            **({"group": True} if reward.group else {}),
        }
        for reward in source.rewards
        if reward.function is not None
    }
    return _Row(truths, [{"role": "user", "content": SENTENCE}])
