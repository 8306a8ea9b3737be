"""Compares a program's output with the expected one, by the rules of competition checkers.

White space: outputs are sequences of words. The amount of white space between words, and the positions of line ends, do
not matter, as in testlib's `wcmp` and the default validator of the ICPC's problem package format. Words are separated
by ASCII white space only.

Words: a word of the reference that is not a decimal must match exactly. This is the rule of `wcmp`, and of the ICPC's
validator without a tolerance (except that case matters here). So integers are exact, `0101` is not `101`, and `1.0` is
not `1`: a task whose answers are integers does not accept a decimal point, neither in those checkers nor in testlib's
`ncmp`.

Decimals: if the reference has a decimal point, or an exponent with its sign as programs print it (`1e-07`), any number
is correct whose absolute or relative error is at most 1e-6, as in testlib's `rcmp6`, and in the ICPC's validator with
`float_tolerance 1e-6`. Numbers consist of ASCII digits, and optionally a sign, a point, and an exponent. `nan`, `inf`,
`1_000`, digits of other scripts, and numbers beyond the range of a finite double are compared as words.
"""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
"""Maximum absolute or relative error of a decimal."""
MAX_DIGITS = 1000
"""Maximum length of a word that is parsed as a number, in characters."""

_DIGITS = rb"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(rb"[+-]?" + _DIGITS + rb"(?:[eE][+-]?[0-9]{1,3})?")
_DECIMAL_MARK = re.compile(rb"\.|[eE][+-]")


def is_same_output(actual: str, expected: str) -> bool:
    """Return True if the outputs of two programs agree word by word, decimals within 1e-6 (see module)."""
    ours, theirs = (text.encode("utf-8", "surrogatepass").split() for text in (actual, expected))
    return len(ours) == len(theirs) and all(map(_is_same_word, ours, theirs))


def _is_same_word(actual: bytes, expected: bytes) -> bool:
    if actual == expected:
        return True
    if not _DECIMAL_MARK.search(expected):
        return False
    value, reference = _parse_number(actual), _parse_number(expected)
    if value is None or reference is None:
        return False
    return abs(value - reference) <= TOLERANCE * max(1.0, abs(reference))


def _parse_number(word: bytes) -> float | None:
    if len(word) > MAX_DIGITS or not _NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else None
