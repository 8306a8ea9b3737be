"""Transforms answers into whole numbers, after DAPO (arXiv:2503.14476, section 3.5).

DAPO has a language model rewrite each question; the result is DAPO-Math-17k. Here whole numbers are kept, the prompt of
a fraction asks for the sum of numerator and denominator, and no other answer is transformed.
"""

from __future__ import annotations

import re
from fractions import Fraction

from tasks.sourcing.values import UnusableError

ASKED = "The answer is a fraction m/n in lowest terms, with n positive. Give the value of m + n."

_NUMBER = re.compile(r"[+-]?\d+(?:\.\d+)?(?:/[1-9]\d*)?")
_LATEX = re.compile(r"([+-]?)\\[dt]?frac\{(\d+)\}\{([1-9]\d*)\}")


def make_whole(answer: str) -> tuple[str, str]:
    """Return the whole number to ask for instead of `answer`, and the text that asks for it.

    The text is empty if `answer` is already a whole number.

    Raises:
        UnusableError: the answer is neither a whole number nor a fraction.
    """
    text = _LATEX.sub(r"\1\2/\3", re.sub(r"[\s$]|(?<=\d),(?=\d{3}(?!\d))", "", answer))
    if not _NUMBER.fullmatch(text) or ("." in text and "/" in text):
        raise UnusableError("the answer is neither a whole number nor a fraction", answer)
    value = Fraction(text)
    if value.denominator == 1:
        return str(value.numerator), ""
    return str(value.numerator + value.denominator), ASKED
