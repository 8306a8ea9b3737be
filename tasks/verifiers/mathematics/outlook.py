r"""Which answers look as if algebra would take long over them: they ask before they begin.

There are two looks: at the text before it is read, and at both sides before they are compared. They decide only when an
answer is judged, behind those that wait, and never how: `2^{2^{2^{2}}}` is judged like any other. What looks harmless
and is not is found out by its time, which costs the others some (`tasks.verifiers.jobs`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from math import comb, prod
from typing import Any

import sympy

LONG_CHARS = 150
"""The grammar takes up to a millisecond for each character of a sum, so that more outlast a call's patience anyway."""
_LONG = re.compile(
    r"\^\s*(?:\{[^{}^]*[0-9)}]\s*\^|[0-9]\s*\^)"  # a number with an exponent in an exponent: a tower
    r"|\^\s*\{?\s*-?[0-9]{5,}"  # a power, sum or product up to a number of five digits
    r"|[0-9]{4,}\s*\}?\s*!|[!)]\s*!"  # the factorial of a thousand, or of a factorial
    r"|\\(?:int|lim|prod|sum)(?![A-Za-z])"  # worked out term by term, or numerically
    r"|matrix\}\s*\^"  # the power of a matrix
)
MANY_TERMS = 60
"""From about here on SymPy takes a tenth of a second and more."""


class _Listener:
    """Who is asked in this process."""

    ask: Callable[[], object] | None = None


def configure(on_slow: Callable[[], object]) -> None:
    """Set what is called before an answer that looks long is computed; it returns when that may begin, or raises."""
    _Listener.ask = on_slow


def ask_before_reading(text: str) -> None:
    """Ask, if a LaTeX expression looks long and there is somebody to ask."""
    if _Listener.ask is not None and looks_long(text):
        _Listener.ask()


def ask_before_comparing(*sides: Any) -> None:
    """Ask, if one of the SymPy objects has many terms and there is somebody to ask."""
    if _Listener.ask is not None and any(map(has_many_terms, sides)):
        _Listener.ask()


def looks_long(text: str) -> bool:
    """Whether computing a LaTeX expression may take a good part of a second, or for ever."""
    return len(text) > LONG_CHARS or _LONG.search(text) is not None


def has_many_terms(found: Any) -> bool:
    """Whether a SymPy object has, multiplied out and over one denominator, `MANY_TERMS` above or below.

    What cancels or adds up counts as well, and a function, relation or set like the largest of what it is made of.
    """
    return isinstance(found, sympy.Basic) and max(_terms(found)) >= MANY_TERMS


def _terms(found: sympy.Basic) -> tuple[int, int]:
    """Terms above and below the fraction bar, each at most `MANY_TERMS`."""
    parts = [_terms(part) for part in found.args if isinstance(part, sympy.Basic)]
    above, below = [part[0] for part in parts], [part[1] for part in parts]
    match found:
        case sympy.Add():
            common = prod(below)
            return _capped(sum(terms * common // own for terms, own in parts), common)
        case sympy.Mul():
            return _capped(prod(above), prod(below))
        case sympy.Pow(exp=sympy.Integer() as power):
            raised = _raised(above[0], abs(power)), _raised(below[0], abs(power))
            return _capped(*(raised if power > 0 else raised[::-1]))
        case _:
            return max(above, default=1), max(below, default=1)


def _raised(terms: int, power: int) -> int:
    """The terms of a sum's power: the ways to choose `power` of the sum's terms, with repetition."""
    chosen = min(int(power), MANY_TERMS)
    return comb(terms + chosen - 1, chosen)


def _capped(above: int, below: int) -> tuple[int, int]:
    return min(above, MANY_TERMS), min(below, MANY_TERMS)
