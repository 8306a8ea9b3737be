"""Compares the ground truths of duplicates, to find contradictions."""

from __future__ import annotations

import json
import re
from fractions import Fraction
from typing import Any, NamedTuple

SHOWN_CHARS = 80
"""Maximum number of characters of a ground truth in a reason."""
_FORMATTING = re.compile(r"[\s$,]+|\\[,;! ]|\\left|\\right")
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")


class Truth(NamedTuple):
    """The columns of a row of `PROMPTS` that its responses are scored with. The ground truth is JSON."""

    verifier: str
    ground_truth: str


def find_contradiction(one: Truth, other: Truth) -> tuple[str, str] | None:
    """Return both ground truths as shortened text if no answer to a question of mathematics is accepted by both.

    Equal numbers are equal, however they are written. Other ground truths can differ without a contradiction: two sets
    of tests, or two reference answers.
    """
    if one == other or not one.verifier == other.verifier == "math":
        return None
    given, given_by_other = _parse_answer(one), _parse_answer(other)
    if _collect_accepted(given) & _collect_accepted(given_by_other):
        return None
    return _format_answer(given), _format_answer(given_by_other)


def _parse_answer(truth: Truth) -> Any:
    value = json.loads(truth.ground_truth)
    return value["answer"] if isinstance(value, dict) and "answer" in value else value


def _collect_accepted(given: Any) -> frozenset[Fraction | str]:
    return frozenset(map(_normalize_answer, given if isinstance(given, list) and given else [given]))


def _format_answer(given: Any) -> str:
    text = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    return text if len(text) <= SHOWN_CHARS else text[: SHOWN_CHARS - 3] + "..."


def _normalize_answer(answer: Any) -> Fraction | str:
    """Return an answer as a number if it is one, and otherwise without white space and signs of formatting."""
    if not isinstance(answer, str):
        return json.dumps(answer, sort_keys=True)
    text = _FRACTION.sub(r"\1/\2", _FORMATTING.sub("", answer)).casefold()
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return text
