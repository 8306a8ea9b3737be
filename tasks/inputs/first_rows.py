"""Tries a user's code on the first rows of a source and dummy responses, before anything is sampled.

A policy could write any of the dummy responses, but code may have good reason to reject one, so one failure proves
nothing. It is refused if it fails on all of them, and on those to other rows. If it fails on some, it is named in the
log.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from tasks.config.loading import SpecError
from tasks.inputs.files import DataFile
from tasks.sourcing import loaders
from tasks.sourcing.files import Malformed
from tasks.sourcing.messages import build_chat
from tasks.sourcing.spec import SourceSpec
from tasks.verifiers import VerifierPool
from tasks.verifiers.calls import Messages

logger = logging.getLogger(__name__)

ROWS = 3
"""Maximum number of rows on whose dummy responses a function must fail before it is refused."""
SENTENCE = "I do not know."
"""The dummy response without an answer."""
ANSWER = "The answer is \\boxed{{{0}}}.\n<answer>{0}</answer>"
"""The dummy response with the answer of its row."""
UNKNOWN = "42"
"""The dummy answer or column value if a row has none."""

Read = TypeVar("Read")
Row = TypeVar("Row")


def usable_rows(
    source: SourceSpec, rows: Iterable[loaders.Row], read: Callable[[dict[str, Any]], Read]
) -> Iterator[tuple[Read, Messages]]:
    """Yield what `read` returns for the content of a row, and the messages of its prompt.

    A row is skipped if it is malformed, has no prompt, or if `read` raises `UnusableError`, `TypeError` or `ValueError`
    for it.
    """
    for row in rows:
        if isinstance(row.content, Malformed):
            continue
        try:
            usable = read(row.content), build_chat(row.content, source.columns, "", "").messages
        except (TypeError, ValueError):  # UnusableError is a ValueError
            continue
        yield usable


def dummy_responses(answer: str) -> list[str]:
    """Return an empty text, a text without an answer, and one with it."""
    return ["", SENTENCE, ANSWER.format(answer)]


def pool_for(data: DataFile) -> VerifierPool:
    """Return a pool of one worker under the limits of a data file, without models."""
    return VerifierPool(1, data.verifiers.model_copy(update={"judge": None, "reward_models": {}}))


def try_on_rows(
    rows: Iterable[Row], errors_on: Callable[[Row], list[str | None]], label: str, on_all: str, on_one: str
) -> bool:
    """Try code on row after row until it succeeds on a dummy response to one, and return whether it never failed.

    Args:
        rows: the rows.
        errors_on: tries the code on the dummy responses to a row, and returns an error for each, or None if it
            succeeded.
        label: the data file and the source, which begin a message.
        on_all: the end of the message if it always fails, with `{}` in place of the number of dummy responses.
        on_one: the end of the message in the log if it fails on one and succeeds on another.

    Raises:
        SpecError: it fails on all dummy responses to all rows.
    """
    errors: list[str] = []
    for row in rows:
        outcomes = errors_on(row)
        errors += [error for error in outcomes if error is not None]
        if None in outcomes:
            break
    else:
        if errors:
            raise SpecError(f"{label}: {errors[0]}; {on_all.format(len(errors))}")
    if errors:
        logger.warning("%s: %s; %s", label, errors[0], on_one)
    return not errors
