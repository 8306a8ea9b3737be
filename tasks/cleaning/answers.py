"""Compares the ground truths of duplicates, to find contradictions."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

SHOWN_CHARS = 80
"""Maximum number of characters of a ground truth in a reason."""
_FORMATTING = re.compile(r"[\s$,]+|\\[,;! ]|\\left|\\right")
_FRACTION = re.compile(r"\\[dt]?frac\{(-?\d+)\}\{(\d+)\}")


@dataclass(frozen=True)
class Answers:
    """The answers that a ground truth accepts, comparable if the verifier is the same.

    Attributes:
        verifier: the verifier that reads the ground truth.
        accepted: the answers without formatting. Equal numbers are equal, however they are written.
        shown: the ground truth as shortened text.
    """

    verifier: str
    accepted: frozenset[Fraction | str]
    shown: str

    def contradicts(self, other: Answers) -> bool:
        """Return True if both are answers to a question of mathematics, and no answer is accepted by both.

        Other ground truths can differ without a contradiction: two sets of tests, or two reference answers.
        """
        return self.verifier == other.verifier == "math" and not self.accepted & other.accepted


def answers_of(verifier: str, ground_truth: str) -> Answers:
    """Return the answers of a row of `PROMPTS`, whose `ground_truth` is JSON."""
    truth = json.loads(ground_truth)
    given = truth["answer"] if isinstance(truth, dict) and "answer" in truth else truth
    listed = given if isinstance(given, list) and given else [given]
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False)
    shown = shown if len(shown) <= SHOWN_CHARS else shown[: SHOWN_CHARS - 3] + "..."
    return Answers(verifier, frozenset(map(_plain, listed)), shown)


def _plain(answer: Any) -> Fraction | str:
    """Return an answer as a number if it is one, and otherwise without white space and signs of formatting."""
    if not isinstance(answer, str):
        return json.dumps(answer, sort_keys=True)
    text = _FRACTION.sub(r"\1/\2", _FORMATTING.sub("", answer)).casefold()
    try:
        return Fraction(text)
    except (ValueError, ZeroDivisionError):
        return text
