"""Tests user-defined verifiers on a source's first rows and dummy responses, before anything is sampled.

Their modules are imported and the signatures of their functions are compared with the calls. They check the ground
truths of the first rows, and score dummy responses as in every stage: in sandboxed processes, under the limits of the
data file. A verifier is refused if it rejects every ground truth, or if none of the dummy responses to a row could be
scored within the limits. In that case its imports, its return value or its code is wrong.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from typing import Any, NamedTuple

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.inputs.rewards import ANSWER, ROWS, SENTENCE, UNKNOWN
from tasks.sourcing import ground_truths, loaders
from tasks.sourcing.files import Malformed
from tasks.sourcing.messages import build_chat
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError
from tasks.verifiers import Call, Score, VerifierPool
from tasks.verifiers.calls import Messages
from tasks.verifiers.custom import load_own_verifier
from tasks.verifiers.registry import TOO_LARGE
from tasks.verifiers.scores import CannotJudge, is_own
from tasks.verifiers.verifier_processes import ENDED

logger = logging.getLogger(__name__)


class _Row(NamedTuple):
    """A row as passed to a verifier: its ground truth and its prompt."""

    truth: dict[str, Any]
    messages: Messages


def check_own_verifiers(source: SourceSpec, rows: list[loaders.Row], data: DataFile) -> None:
    """Test the user-defined verifiers of a source.

    Args:
        source: the source.
        rows: its first rows.
        data: the data file, for its name and the limits of the verifiers.

    Raises:
        SpecError: a verifier's module cannot be imported or lacks a function, or the verifier fails as above. The
            message contains its name and the reason.
    """
    names = sorted(filter(is_own, source.verifiers))
    if not names:
        return
    where = f"{data.name}: source {source.name!r}"
    try:
        usable = {name: _find_usable(name, source, rows, where) for name in names}
    except CannotJudge as reason:
        raise SpecError(f"{where}: {reason}") from None
    with VerifierPool(1, data.verifiers.model_copy(update={"judge": None, "reward_models": {}})) as pool:
        for name, few in usable.items():
            _check(pool, name, few, where)


def _find_usable(name: str, source: SourceSpec, rows: list[loaders.Row], where: str) -> list[_Row]:
    """Return up to `ROWS` first rows whose ground truths a verifier accepts. Raises `CannotJudge` if it is unusable."""
    load_own_verifier(name).load()
    usable: list[_Row] = []
    refused: UnusableError | None = None
    for row in rows:
        if isinstance(row.content, Malformed) or len(usable) == ROWS:
            continue
        try:
            truth = json.loads(json.dumps(ground_truths.ground_truth(row.content, name, source.columns)))
            messages = build_chat(row.content, source.columns, "", "").messages
        except UnusableError as error:
            refused = error if error.kind == "ground_truth" else refused
            continue
        except (TypeError, ValueError):
            continue
        usable.append(_Row(truth, messages))
    if refused is not None and not usable:
        raise SpecError(f"{where}: {refused.reason}; it does this for each of its first rows")
    if refused is not None:
        logger.warning("%s: %s; such rows are set aside", where, refused.reason)
    return usable


def _check(pool: VerifierPool, name: str, rows: list[_Row], where: str) -> None:
    """Score responses to row after row until the verifier succeeds on one. Raises `SpecError` if it always fails."""
    problems: list[str] = []
    for row in rows:
        outcomes = [_find_problem(name, pool.submit(*call).result()) for call in _make_calls(name, row)]
        problems += filter(None, outcomes)
        if not all(outcomes):
            break
    else:
        if problems:
            raise SpecError(f"{where}: {problems[0]}; it does this for each of {len(problems)} dummy responses")
    if problems:
        logger.warning("%s: %s; it does this for one dummy response, not for others", where, problems[0])


def _make_calls(name: str, row: _Row) -> Iterator[Call]:
    value = row.truth["ground_truth"]
    answer = value if isinstance(value, str | int | float) else UNKNOWN
    for response in ("", SENTENCE, ANSWER.format(answer)):
        yield Call(name, response, row.truth, row.messages)


def _find_problem(name: str, score: Score) -> str | None:
    """Return the reason why a dummy response could not be scored within the limits, or None if it could."""
    if score.timed_out or score.detail.startswith((TOO_LARGE, ENDED)):
        return f"verifier {name}: {score.detail}"
    return score.error
