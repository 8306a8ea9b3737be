"""Compares two expressions by their values: exactly for rational numbers, otherwise to hundreds of digits.

Expressions are not simplified or expanded. Numbers that are too large to be computed (7^{7^7}, 1000000!) are compared
by their residues. Expressions with variables are compared by their values at fixed points; the probability that unequal
ones agree is about 10^-9 at each point (Schwartz-Zippel for polynomials: https://doi.org/10.1145/322217.322225).
"""

from __future__ import annotations

import math
import zlib
from collections.abc import Mapping
from typing import Any

import sympy

from tasks.verifiers.mathematics.plain_numbers import TOLERANCE

MAX_BITS = 100_000
"""Maximum size of a computed number, in bits of its numerator and denominator together."""
MAX_FACTORIAL = 2_000_000
"""Largest number whose factorial is computed at all."""
DIGITS, DIGITS_AT_POINTS = 500, 60
"""Digits of irrational values: of numbers, and of expressions with variables."""
POINTS, ENOUGH_POINTS = 8, 4
"""Points at which expressions with variables are compared, and the minimum at which both must have a real value."""
_PIECEWISE = (sympy.Max, sympy.Min, sympy.Piecewise, sympy.floor, sympy.ceiling, sympy.sign)
_PRIMES = (2**61 - 1, 2**31 - 1)


class HugeError(Exception):
    """A number has more than `MAX_BITS` bits."""


def compare_values(answer: Any, reference: Any) -> bool | None:
    """Return True if two expressions have the same value, or the same values at all points, or None if undecided.

    Variables with the same name are the same. If a side contains a decimal, `TOLERANCE` applies, relative to the value
    at points. Points at which a part of a side has no real value are skipped: so ln(ab) is ln a + ln b, and sqrt(x^2)
    is not x. Piecewise functions such as max cannot be decided by points.
    """
    names = {symbol.name for symbol in answer.free_symbols | reference.free_symbols}
    try:
        _estimate_bits(answer), _estimate_bits(reference)
    except HugeError:
        return not names and _has_equal_residues(answer, reference)
    if names and (answer.has(*_PIECEWISE) or reference.has(*_PIECEWISE)):
        return None
    decimal = answer.has(sympy.Float) or reference.has(sympy.Float)
    if not names:
        ours, theirs = _evaluate(answer, {}, DIGITS), _evaluate(reference, {}, DIGITS)
        return None if ours is None or theirs is None else _close(ours, theirs, DIGITS, decimal)
    anywhere = answer.has(sympy.I) or reference.has(sympy.I)
    compared = 0
    for number in range(POINTS):
        point = {name: _choose_coordinate(name, number) for name in names}
        if not all(_is_defined(side, point) for side in (answer, reference)):
            continue
        ours, theirs = (_evaluate(side, point, DIGITS_AT_POINTS) for side in (answer, reference))
        if ours is None or theirs is None or not (anywhere or (_is_real(ours) and _is_real(theirs))):
            continue
        if not _close(ours, theirs, DIGITS_AT_POINTS, decimal):
            return False
        compared += 1
    return True if compared >= ENOUGH_POINTS else None


def _choose_coordinate(name: str, number: int) -> Any:
    """Return a variable's value at a point: positive fractions, integers, then fractions of both signs.

    At two of the points the values are 1000 times larger.
    """
    draw = zlib.crc32(f"{name} {number}".encode())
    if number in (3, 4):
        return sympy.Integer(2 + draw % 7)
    sign = -1 if number > 4 and (draw >> 8) % 2 else 1
    return sympy.Rational(sign * (draw % 4093 + 100) * (1000 if number in (2, POINTS - 1) else 1), 1361)


def _evaluate(expression: Any, point: Mapping[str, Any], digits: int) -> Any | None:
    """Return the value at a point, as a Rational if it is exact, else to `digits` digits, or None if undefined."""
    replaced = expression.xreplace({symbol: point[symbol.name] for symbol in expression.free_symbols})
    value = replaced.doit()
    if not value.is_Rational:
        value = value.evalf(digits)
    return value if all(part.is_Float or part.is_Rational for part in value.as_real_imag()) else None


def _is_defined(expression: Any, point: Mapping[str, Any]) -> bool:
    """Return True if the value at a point contains no root or logarithm of a negative number."""
    for part in sympy.preorder_traversal(expression):
        if isinstance(part, sympy.Pow):
            partial = not part.exp.free_symbols and not part.exp.doit().is_Integer
        else:
            partial = isinstance(part, sympy.log)
        if partial and part.args[0].free_symbols and _is_negative(part.args[0], point):
            return False
    return True


def _is_negative(expression: Any, point: Mapping[str, Any]) -> bool:
    value = _evaluate(expression, point, DIGITS_AT_POINTS)
    return value is not None and bool(value.is_negative)


def _is_real(value: Any) -> bool:
    real, imaginary = value.as_real_imag()
    return bool(abs(imaginary) <= abs(real) * sympy.Float(10) ** (10 - DIGITS_AT_POINTS))


def _close(ours: Any, theirs: Any, digits: int, decimal: bool) -> bool:
    if ours == theirs:
        return True
    size = max(abs(ours), abs(theirs))
    if decimal:
        bound = size if digits == DIGITS_AT_POINTS else min(1, size)
        return bool(abs(ours - theirs) <= sympy.Rational(TOLERANCE.numerator, TOLERANCE.denominator) * bound)
    if ours.is_Rational and theirs.is_Rational:
        return False
    noise = sympy.Float(10, digits) ** (10 - digits)
    return bool(size <= noise or abs(ours - theirs) <= noise * size)


def _estimate_bits(expression: Any) -> float:
    """Return an upper bound of the bits of a number's numerator and denominator; raises `HugeError` past `MAX_BITS`."""
    if expression.is_Rational:
        bits = float(int(expression.p).bit_length() + int(expression.q).bit_length())
    elif isinstance(expression, sympy.Pow):
        base, exponent = _estimate_bits(expression.base), _estimate_bits(expression.exp)
        power = expression.exp.doit() if exponent <= 64 and not expression.exp.free_symbols else sympy.Integer(1)
        bits = base * (abs(float(power)) if power.is_Rational else 1)
    elif isinstance(expression, sympy.factorial | sympy.factorial2 | sympy.binomial):
        numbers = [part.doit() if _estimate_bits(part) <= 256 else sympy.oo for part in expression.args]
        real = all(part.is_extended_real and part.is_number for part in numbers)
        bits = _estimate_product_bits(*map(float, numbers)) if real else 64
    else:
        bits = 64 + sum(map(_estimate_bits, expression.args))
    if bits > MAX_BITS:
        raise HugeError
    return bits


def _estimate_product_bits(top: float, below: float | None = None) -> float:
    """Return an upper bound of the bits of a factorial, or of a binomial coefficient."""
    factors = top if below is None else min(below, top - below)
    return max(factors, 0.0) * math.log2(max(top, 0.0) + 2)


def _has_equal_residues(answer: Any, reference: Any) -> bool:
    """Compare two integers or rational numbers of any size by their residues; return False if a side has none."""
    for prime in _PRIMES:
        ours, theirs = _compute_residue(answer, prime), _compute_residue(reference, prime)
        if ours is None or ours != theirs:
            return False
    return True


def _compute_residue(expression: Any, modulus: int) -> int | None:
    """Return a number's residue, or None if it has none or would take too long."""
    if expression.is_Rational:
        coprime = math.gcd(expression.q, modulus) == 1
        return int(expression.p * pow(expression.q, -1, modulus)) % modulus if coprime else None
    if isinstance(expression, sympy.Add | sympy.Mul):
        parts = [_compute_residue(part, modulus) for part in expression.args]
        known = [part for part in parts if part is not None]
        if len(known) < len(parts):
            return None
        return sum(known) % modulus if isinstance(expression, sympy.Add) else math.prod(known) % modulus
    if isinstance(expression, sympy.Pow):
        return _compute_power_residue(expression.base, expression.exp, modulus)
    if isinstance(expression, sympy.factorial):
        return _compute_factorial_residue(expression.args[0], modulus)
    return None


def _compute_power_residue(base: Any, exponent: Any, modulus: int) -> int | None:
    """Return a power's residue: for a huge exponent e, a^(e mod t + t), with t the totient of the modulus."""
    remainder = _compute_residue(base, modulus)
    try:
        _estimate_bits(exponent)
        power = int(exponent.doit()) if exponent.doit().is_Integer else None
    except HugeError:
        totient = int(sympy.totient(modulus))
        rest = _compute_residue(exponent, totient)
        power = None if rest is None else rest + totient
    if remainder is None or power is None or (power < 0 and math.gcd(remainder, modulus) > 1):
        return None
    return pow(remainder, power, modulus)


def _compute_factorial_residue(argument: Any, modulus: int) -> int | None:
    try:
        _estimate_bits(argument)
    except HugeError:
        return None
    top = argument.doit()
    if not top.is_Integer or not 0 <= top <= MAX_FACTORIAL:
        return None
    product = 1
    for factor in range(2, int(top) + 1):
        product = product * factor % modulus
    return product
