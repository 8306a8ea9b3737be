"""Comparison of a program's output with the expected one, by the rules of competition checkers.

White space: outputs are sequences of words. How much of it stands between two words, and where lines end, does not
count; so do testlib's `wcmp` and the default validator of the ICPC's problem package format. Words are separated by
ASCII white space only.

Words: a word of the reference that is not a decimal must be matched letter by letter. That is `wcmp`, and the ICPC's
validator without a tolerance (but for case, which counts here). So integers are exact, `0101` is not `101`, and `1.0`
is not `1`: a task whose answers are integers does not accept a decimal point, in those checkers nor in testlib's
`ncmp`.

Decimals: where the reference has a decimal point, or an exponent with its sign as programs print it (`1e-07`), any
number is right whose absolute or relative error is at most 1e-6, as in testlib's `rcmp6`, and in the ICPC's validator
with `float_tolerance 1e-6`. Numbers are ASCII digits with a sign, a point, and an exponent at most. `nan`, `inf`,
`1_000`, and digits of other scripts are words like any other, and so is what no finite double holds.
"""

from __future__ import annotations

import math
import re

TOLERANCE = 1e-6
"""Largest absolute or relative error of a decimal."""
MAX_DIGITS = 1000
"""Longest word that is read as a number, in characters."""

_DIGITS = rb"(?:(?:0|[1-9][0-9]*)(?:\.[0-9]*)?|\.[0-9]+)"
_NUMBER = re.compile(rb"[+-]?" + _DIGITS + rb"(?:[eE][+-]?[0-9]{1,3})?")
_DECIMAL_MARK = re.compile(rb"\.|[eE][+-]")


def same_output(actual: str, expected: str) -> bool:
    """Return True if two outputs of programs agree word by word, decimals within 1e-6 (rules: see the module)."""
    ours, theirs = (text.encode("utf-8", "surrogatepass").split() for text in (actual, expected))
    return len(ours) == len(theirs) and all(map(_same_word, ours, theirs))


def _same_word(actual: bytes, expected: bytes) -> bool:
    if actual == expected:
        return True
    if not _DECIMAL_MARK.search(expected):
        return False
    value, reference = _number(actual), _number(expected)
    if value is None or reference is None:
        return False
    return abs(value - reference) <= TOLERANCE * max(1.0, abs(reference))


def _number(word: bytes) -> float | None:
    if len(word) > MAX_DIGITS or not _NUMBER.fullmatch(word):
        return None
    value = float(word)
    return value if math.isfinite(value) else None
