r"""Equality by computer algebra: math-verify's grammar and comparison over SymPy, with what it lets through shut out.

Of math-verify's two readers only the LaTeX grammar is used. The other one evaluates Python source, and picks a number
out of text that it cannot read. An answer that the grammar does not read as a whole is no answer.
"""

from __future__ import annotations

import logging
import re
from fractions import Fraction
from functools import lru_cache
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify.grader import should_treat_as_complex
from sympy.core.relational import Relational

from tasks.verifiers.mathematics.plain_numbers import TOLERANCE

# Units are off: its list holds letters, by which 2c is 2. Boxes are off: there are none in an extracted answer.
_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
# By its default R is r, and the area between two circles nothing.
_CONVERSION = ConversionConfig(lowercase_symbols=False)
_PRODUCT = re.compile(r"(?<=[0-9)])\s*(?=\()|(?<=\))\s*(?=[0-9])")
_COEFFICIENT = re.compile(r"(?<![\w.)}^!])([0-9]+)/([0-9]+)(?=\s*(?:[A-Za-z(]|\\(?:pi|sqrt)(?![A-Za-z])))")
_SUBSCRIPT = re.compile(r"_\{[^{}]*\}")
_JUXTAPOSED = re.compile(
    r"[0-9.]\}?\s+[0-9.]|(?<!\\frac)[0-9)]\s*\{|(?:^|[\s(,+*/=-])\{[^{}]*\}\s*[{0-9(]|\.[0-9]+\.|[0-9]_"
    r"|(?<![0-9.])0[0-9]|(?<![A-Za-z0-9\\])[A-Za-z]+[0-9]|[0-9](?![eE][-+]?[0-9])[A-Za-z]+[0-9]"
)
_OR = re.compile(r"\s+or\s+")
_DIGITS = 30


def warm_up() -> None:
    """Silence the note about the limit that is off on purpose."""
    logging.getLogger("math_verify.grader").setLevel(logging.ERROR)


@lru_cache(maxsize=4096)  # the samples of a group often agree on a wrong answer too
def equal_by_algebra(answer: str, reference: str) -> bool:
    """Whether two tidied texts are the same mathematical object; False where one of them cannot be read or computed."""
    theirs, ours = read(reference), read(answer)
    if theirs is None or ours is None:
        return False
    try:
        return _same_object(ours, theirs)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # SymPy has no common error for what has no meaning: nan < 1, a root of a set, ...
        return False


def _same_object(ours: Any, theirs: Any) -> bool:
    if _has_no_value(ours) or _has_no_value(theirs):
        return False
    if _is_infinite(ours) or _is_infinite(theirs):
        return bool(ours == theirs)
    if _is_number(ours) and _is_number(theirs):
        return _equal_numbers(ours, theirs)
    same = math_verify.verify([theirs], [ours], timeout_seconds=None, allow_set_relation_comp=True)
    if _is_inequality(ours) and _is_inequality(theirs):
        return same or _same_region(ours, theirs)
    return same and not (
        isinstance(theirs, sympy.Eq) and isinstance(ours, sympy.Eq) and _only_both_unsolvable(ours, theirs)
    )


@lru_cache(maxsize=1024)
def read(text: str) -> Any | None:
    """A SymPy object, or None. The grammar adds up numbers side by side, by which 3(4) and 1 2 4 would be 7.

    So products are written out, and what is no product either is not read; nor is x2, which it takes for 2x.
    """
    text = _PRODUCT.sub(r" \\cdot ", _COEFFICIENT.sub(r"\\frac{\1}{\2}", text))
    if "$" in text or _JUXTAPOSED.search(_SUBSCRIPT.sub("_'", text)):
        return None
    if len(cases := _OR.split(text)) > 1:
        return _either([read(case) for case in cases])
    try:
        found = latex2sympy(
            normalize_latex(text, _NORMALIZATION),
            is_real=not should_treat_as_complex(text),
            convert_degrees=True,
            normalization_config=None,
            conversion_config=_CONVERSION,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the grammar has no common error for what it cannot read
        return None
    return _with_imaginary_unit(found)


def _either(cases: list[Any]) -> Any | None:
    """The set on which one of several relations holds; None where they are not all relations."""
    if all(isinstance(case, Relational | sympy.And) and len(case.free_symbols) == 1 for case in cases):
        return sympy.Or(*cases).as_set()
    return None


def _with_imaginary_unit(found: Any) -> Any:
    """The grammar reads i as a variable like any other, by which i^2 is not -1."""
    if not isinstance(found, sympy.Expr) or found.has(sympy.Sum, sympy.Product):  # there, i is an index
        return found
    return found.subs({symbol: sympy.I for symbol in found.free_symbols if getattr(symbol, "name", "") == "i"})


def _same_region(ours: Any, theirs: Any) -> bool:
    """Whether two inequalities of one and the same variable hold for the same of its values, not all or none."""
    if ours.free_symbols != theirs.free_symbols or len(ours.free_symbols) != 1:
        return False
    region = ours.as_set()
    return bool(region == theirs.as_set()) and region not in (sympy.S.EmptySet, sympy.S.Reals)


def _only_both_unsolvable(ours: sympy.Eq, theirs: sympy.Eq) -> bool:
    """Whether two equations share nothing but the lack of solutions, by which x = x + 1 is x^2 + 1 = 0."""
    sides = (*ours.args, *theirs.args)
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    ratio = sympy.simplify((ours.lhs - ours.rhs) / (theirs.lhs - theirs.rhs))
    one_is_the_other = not ratio.free_symbols and ratio.is_finite and ratio.is_zero is False
    return not one_is_the_other and not sympy.solve(theirs)


def _is_infinite(found: Any) -> bool:
    """Whether infinities are calculated with, by which all is equal to all. In sets they are bounds."""
    return isinstance(found, sympy.Expr | Relational) and found.has(sympy.oo, -sympy.oo)


def _has_no_value(found: Any) -> bool:
    """Whether something is divided by zero, by which 1/0 is 2/0."""
    return isinstance(found, sympy.Basic | sympy.MatrixBase) and found.has(sympy.zoo, sympy.nan)


def _is_inequality(found: Any) -> bool:
    parts = found.args if isinstance(found, sympy.And) else (found,)
    return all(isinstance(part, Relational) and not isinstance(part, sympy.Eq) for part in parts)


def _is_number(found: Any) -> bool:
    return isinstance(found, sympy.Expr) and not found.free_symbols and bool(found.is_number)


def _equal_numbers(answer: sympy.Expr, reference: sympy.Expr) -> bool:
    """Exactly equal, or within the tolerance of plain numbers where one holds a decimal.

    math-verify's own verdict stands only if the values agree: it cuts off what is small, by which pi/10^20 is e/10^20.
    """
    ours, theirs = _value(answer), _value(reference)
    if ours is None or theirs is None:
        return ours is theirs and math_verify.verify([reference], [answer], timeout_seconds=None)
    near = bool(abs(ours - theirs) <= _rational(TOLERANCE) * min(1, max(abs(ours), abs(theirs))))
    if answer.has(sympy.Float) or reference.has(sympy.Float):
        return near
    return near and math_verify.verify([reference], [answer], timeout_seconds=None)


def _value(number: sympy.Expr) -> Any | None:
    """The value to thirty digits; None for what SymPy cannot put a number to."""
    value = number.doit().evalf(_DIGITS)
    return value if all(part.is_Float or part.is_Rational for part in value.as_real_imag()) else None


def _rational(fraction: Fraction) -> sympy.Rational:
    return sympy.Rational(fraction.numerator, fraction.denominator)
