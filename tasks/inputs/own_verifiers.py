"""Tests user-defined verifiers on a source's first rows and dummy responses, before anything is sampled.

Their modules are imported and the signatures of their functions are compared with the calls. They check the ground
truths of the first rows, and score dummy responses as in every stage: in sandboxed processes, under the limits of the
data file. A verifier is refused if it rejects every ground truth, or if none of the dummy responses to a row could be
scored within the limits. In that case its imports, its return value or its code is wrong.
"""

from __future__ import annotations

import json
import logging
from functools import partial
from itertools import islice
from typing import Any

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.inputs.first_rows import ROWS, UNKNOWN, dummy_responses, pool_for, try_on_rows, usable_rows
from tasks.sourcing import ground_truths, loaders
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError
from tasks.verifiers import Score, VerifierPool
from tasks.verifiers.calls import Messages
from tasks.verifiers.custom import load_own_verifier
from tasks.verifiers.registry import TOO_LARGE
from tasks.verifiers.scores import CannotJudge, is_own
from tasks.verifiers.verifier_processes import ENDED

logger = logging.getLogger(__name__)

_Row = tuple[dict[str, Any], Messages]
"""A row as passed to a verifier: its ground truth and its prompt."""


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
    with pool_for(data) as pool:
        for name, few in usable.items():
            on_all = "it does this for each of {} dummy responses"
            on_one = "it does this for one dummy response, not for others"
            try_on_rows(few, partial(_errors_on, pool, name), where, on_all, on_one)


def _find_usable(name: str, source: SourceSpec, rows: list[loaders.Row], where: str) -> list[_Row]:
    """Return up to `ROWS` first rows whose ground truths a verifier accepts. Raises `CannotJudge` if it is unusable."""
    load_own_verifier(name).load()
    refused: list[UnusableError] = []

    def truth_of(content: dict[str, Any]) -> dict[str, Any]:
        try:
            truth: dict[str, Any] = json.loads(json.dumps(ground_truths.ground_truth(content, name, source.columns)))
        except UnusableError as error:
            if error.kind == "ground_truth":
                refused.append(error)
            raise
        return truth

    usable = list(islice(usable_rows(source, rows, truth_of), ROWS))
    if refused and not usable:
        raise SpecError(f"{where}: {refused[-1].reason}; it does this for each of its first rows")
    if refused:
        logger.warning("%s: %s; such rows are set aside", where, refused[-1].reason)
    return usable


def _errors_on(pool: VerifierPool, name: str, row: _Row) -> list[str | None]:
    truth, messages = row
    value = truth["ground_truth"]
    responses = dummy_responses(str(value) if isinstance(value, str | int | float) else UNKNOWN)
    return [_error(name, pool.submit(name, text, truth, messages).result()) for text in responses]


def _error(name: str, score: Score) -> str | None:
    """Return the reason why a dummy response could not be scored within the limits, or None if it could."""
    if score.timed_out or score.detail.startswith((TOO_LARGE, ENDED)):
        return f"verifier {name}: {score.detail}"
    return score.error
