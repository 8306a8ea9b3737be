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
from collections.abc import Sequence
from itertools import islice
from typing import Any, NamedTuple

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.inputs.first_rows import ROWS, SENTENCE, UNKNOWN, dummy_responses, pool_for, try_on_rows, usable_rows
from tasks.sourcing import ground_truths, loaders
from tasks.sourcing.spec import SourceSpec
from tasks.verifiers import Score, VerifierPool
from tasks.verifiers.calls import Messages, Response
from tasks.verifiers.scores import CannotJudge

logger = logging.getLogger(__name__)


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
    with pool_for(data) as pool:
        for function in dict.fromkeys(functions):
            _check(pool, function, usable, where)


def _check(pool: VerifierPool, function: _Function, rows: list[_Row], where: str) -> None:
    """Call a function on responses to row after row until it succeeds on one. Raises `SpecError` if it always fails."""

    def score(response: Response, row: _Row) -> Score:
        return pool.submit("function", response, row.truths[function], row.messages).result()

    def errors_on(row: _Row) -> list[str | None]:
        scores = [score(response, row) for response in _responses(function, row)]
        away = next((each for each in scores if each.failure is not None and each.failure.may_pass), None)
        if away is not None:
            raise CannotJudge(str(away.error))
        return [None if each.failure is None else each.error for each in scores]

    kind, kinds = ("group of responses", "groups of responses") if function.group else ("response", "responses")
    on_all = f"it fails like this on each of {{}} dummy {kinds}"
    on_one = f"it fails like this on one dummy {kind}, not on others"
    try:
        never_failed = try_on_rows(rows, errors_on, where, on_all, on_one)
    except CannotJudge as reason:
        logger.warning("%s: it could not be tested here: %s", where, reason)
        return
    if never_failed and function.group and (error := score([SENTENCE], rows[0]).error) is not None:
        logger.warning("%s: %s; it fails on a group of one response, which a stage has with samples: 1", where, error)


def _responses(function: _Function, row: _Row) -> Sequence[Response]:
    texts = dummy_responses(_answer(row.truths[function]["columns"].get("ground_truth")))
    return [texts, texts[1:]] if function.group else texts


def _answer(truth: Any) -> str:
    """Return the answer of a correct response, if the ground truth contains it literally."""
    if isinstance(truth, dict):
        truth = truth.get("answer", truth.get("reference"))
    if isinstance(truth, list):
        truth = truth[0] if truth else None
    return UNKNOWN if truth is None or isinstance(truth, dict | list) else str(truth)


def _find_usable(source: SourceSpec, rows: list[loaders.Row]) -> list[_Row]:
    """Return up to `ROWS` first rows that become prompts. Raises `CannotJudge` if a function's module is missing."""

    def graded(content: dict[str, Any]) -> tuple[str, Any]:
        verifier, truth = ground_truths.graded(content, source)
        return verifier, json.loads(json.dumps(truth))  # as a stage reads it from a table

    usable = islice(usable_rows(source, rows, graded), ROWS)
    return [_Row(_make_truths(verifier, truth), messages) for (verifier, truth), messages in usable]


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
