r"""Compares answers by computer algebra, with math-verify's grammar and comparison over SymPy and additional checks.

Only the LaTeX parser of math-verify's two parsers is used. The other one evaluates Python source, and extracts a number
from text that it cannot parse. An answer that the grammar does not parse completely is not an answer. If math-verify
would accept unequal objects as equal, a check here rejects them first; each check states an example.
"""

from __future__ import annotations

import logging
import re
from functools import lru_cache
from typing import Any

import math_verify
import sympy
from latex2sympy2_extended import NormalizationConfig, latex2sympy, normalize_latex
from latex2sympy2_extended.latex2sympy2 import ConversionConfig
from math_verify.grader import should_treat_as_complex
from sympy.core.relational import Relational

from tasks.verifiers.mathematics.values import compare_values

# Units are off: math-verify's list contains letters, so 2c would be 2. Boxes are off: extracted answers have none.
_NORMALIZATION = NormalizationConfig(
    basic_latex=True, units=False, malformed_operators=True, nits=True, boxed="none", equations=False
)
# By default R would be r, and the area between two circles 0.
_CONVERSION = ConversionConfig(lowercase_symbols=False)
# Rewritten before parsing: 2(3) and (2)3 to products, 3/4x to a fraction times x.
_PRODUCT = re.compile(r"(?<=[0-9)])\s*(?=\()|(?<=\))\s*(?=[0-9])")
_COEFFICIENT = re.compile(r"(?<![\w.)}^!])([0-9]+)/([0-9]+)(?=\s*(?:[A-Za-z(]|\\(?:pi|sqrt)(?![A-Za-z])))")
# Not parsed at all: two numbers next to each other, 1.2.3, 007, x2, 2x3.
_SUBSCRIPT = re.compile(r"_\{[^{}]*\}")
_JUXTAPOSED = re.compile(
    r"[0-9.]\}?\s+[0-9.]|(?<!\\frac)[0-9)]\s*\{|(?:^|[\s(,+*/=-])\{[^{}]*\}\s*[{0-9(]|\.[0-9]+\.|[0-9]_"
    r"|(?<![0-9.])0[0-9]|(?<![A-Za-z0-9\\])[A-Za-z]+[0-9]|[0-9](?![eE][-+]?[0-9])[A-Za-z]+[0-9]"
)
# The grammar does not parse e_1 as a variable, and parses y' as y.
_NAMED_E = re.compile(r"(?<![A-Za-z\\])([eE])_(?:\{([^{}]*)\}|([A-Za-z0-9]))")
_PRIMED = re.compile(r"(?<![A-Za-z\\])([A-Za-z])(?:_(?:\{([^{}]*)\}|([A-Za-z0-9])))?('+)")
_OR = re.compile(r"\s+or\s+")


def warm_up() -> None:
    """Silence math-verify's warning that its time limit is off, which every call would log."""
    logging.getLogger("math_verify.grader").setLevel(logging.ERROR)


@lru_cache(maxsize=4096)  # samples of a group often share an answer, even a wrong one
def is_equal_by_algebra(answer: str, reference: str) -> bool:
    """Return True if two normalised texts are the same object; False also if one cannot be parsed or computed."""
    theirs, ours = read(reference), read(answer)
    if theirs is None or ours is None:
        return False
    try:
        return _is_same_object(ours, theirs)
    except (MemoryError, RecursionError):
        raise
    except Exception:  # SymPy has no common error for undefined operations: nan < 1, a root of a set, ...
        return False


def _is_same_object(ours: Any, theirs: Any) -> bool:
    if _has_no_value(ours) or _has_no_value(theirs):
        return False
    if _is_infinite(ours) or _is_infinite(theirs):
        return bool(ours == theirs)
    if isinstance(ours, sympy.Expr) and isinstance(theirs, sympy.Expr):
        verdict = compare_values(ours, theirs)
        if verdict is not None:
            return verdict
    same = math_verify.verify([theirs], [ours], timeout_seconds=None, allow_set_relation_comp=True)
    if _is_inequality(ours) and _is_inequality(theirs):
        return same or _is_same_region(ours, theirs)
    return same and not (
        isinstance(theirs, sympy.Eq) and isinstance(ours, sympy.Eq) and _is_only_unsolvable(ours, theirs)
    )


@lru_cache(maxsize=1024)
def read(text: str) -> Any | None:
    """Parse a normalised text into a SymPy object; return None if the grammar does not parse it completely.

    The grammar adds adjacent numbers, so that 3(4) and 1 2 4 would be 7. Therefore products are written out, and
    adjacent numbers that are not a product are rejected. So is x2, which the grammar parses as 2x.
    """
    text = _PRODUCT.sub(r" \\cdot ", _COEFFICIENT.sub(r"\\frac{\1}{\2}", text))
    text = _NAMED_E.sub(lambda name: f"X_{{{name[1]}{name[2] or name[3]}}}", _PRIMED.sub(_replace_primes, text))
    if "$" in text or _JUXTAPOSED.search(_SUBSCRIPT.sub("_'", text)):
        return None
    if len(cases := _OR.split(text)) > 1:
        return _join_relations([read(case) for case in cases])
    try:
        expression = latex2sympy(
            normalize_latex(text, _NORMALIZATION),
            is_real=not should_treat_as_complex(text),
            convert_degrees=True,
            normalization_config=None,
            conversion_config=_CONVERSION,
        )
    except (MemoryError, RecursionError):
        raise
    except Exception:  # the grammar has no common error for unparsable text
        return None
    expression = _replace_imaginary_unit(expression)
    return _replace_odd_roots(expression) if "\\sqrt[" in text else expression


def _replace_primes(name: re.Match[str]) -> str:
    return f"{name[1]}_{{{name[2] or name[3] or ''}{'prime' * len(name[4])}}}"


def _join_relations(cases: list[Any]) -> Any | None:
    """Return the set on which at least one of several relations is true, or None if not all of them are relations."""
    if all(isinstance(case, Relational | sympy.And) and len(case.free_symbols) == 1 for case in cases):
        return sympy.Or(*cases).as_set()
    return None


def _replace_imaginary_unit(expression: Any) -> Any:
    """Replace the variable i by the imaginary unit; the grammar parses i as a variable, so i^2 would not be -1."""
    if not isinstance(expression, sympy.Expr) or expression.has(sympy.Sum, sympy.Product):  # there, i is an index
        return expression
    variables = {symbol: sympy.I for symbol in expression.free_symbols if getattr(symbol, "name", "") == "i"}
    return expression.subs(variables) if variables else expression


def _replace_odd_roots(expression: Any) -> Any:
    """Replace odd roots of negative numbers by real roots; in SymPy, the cube root of -8 is 1 + sqrt(3)i."""
    return expression.replace(
        lambda part: isinstance(part, sympy.Pow) and part.exp.is_Rational and part.exp.q % 2 == 1 and part.exp.q > 1
        and part.base.is_negative,
        lambda part: (-1) ** part.exp.p * sympy.Pow(-part.base, part.exp, evaluate=False),
    )  # fmt: skip


def _is_same_region(ours: Any, theirs: Any) -> bool:
    """Return True if two inequalities in one variable have the same solutions, neither all real numbers nor none."""
    if ours.free_symbols != theirs.free_symbols or len(ours.free_symbols) != 1:
        return False
    region = ours.as_set()
    return bool(region == theirs.as_set()) and region not in (sympy.S.EmptySet, sympy.S.Reals)


def _is_only_unsolvable(ours: sympy.Eq, theirs: sympy.Eq) -> bool:
    """Return True if two equations only share that they have no solution, like x = x + 1 and x^2 + 1 = 0."""
    sides = (*ours.args, *theirs.args)
    if not all(isinstance(side, sympy.Expr) for side in sides):
        return False
    ratio = sympy.simplify((ours.lhs - ours.rhs) / (theirs.lhs - theirs.rhs))
    one_is_the_other = not ratio.free_symbols and ratio.is_finite and ratio.is_zero is False
    return not one_is_the_other and not sympy.solve(theirs)


def _is_infinite(expression: Any) -> bool:
    """Return True if the expression calculates with infinities; unequal expressions would then compare as equal.

    Infinities as bounds of sets are allowed.
    """
    return isinstance(expression, sympy.Expr | Relational) and expression.has(sympy.oo, -sympy.oo)


def _has_no_value(expression: Any) -> bool:
    """Return True if the expression divides by zero; 1/0 would otherwise equal 2/0."""
    return isinstance(expression, sympy.Basic | sympy.MatrixBase) and expression.has(sympy.zoo, sympy.nan)


def _is_inequality(expression: Any) -> bool:
    parts = expression.args if isinstance(expression, sympy.And) else (expression,)
    return all(isinstance(part, Relational) and not isinstance(part, sympy.Eq) for part in parts)
