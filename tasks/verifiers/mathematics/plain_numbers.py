r"""Parses numbers exactly: 7, -7.50, 3/4, \frac{3}{4}, 1 1/2, 1.2e3, 1.2 \times 10^3, 50%.

This includes 5 million, 7 hundredths, and repeating decimals: 0.\overline{3}, 0.(3), and 0.333..., if the digits before
the dots repeat. Dots after other digits are not parsed, because 3.14... may continue in any way.

Fractions compare numbers without rounding, and at a thousandth of the cost of computer algebra.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from fractions import Fraction

from tasks.verifiers.mathematics.number_words import COINS, PARTS, SCALES

MAX_DIGITS = 100
"""Maximum characters of a number; longer numbers are parsed by SymPy, under the time limit."""

TOLERANCE = Fraction(1, 10**6)
"""Maximum error of a decimal: one part in a million, and at most one unit in the sixth decimal place.

|a - b| <= 1e-6 * min(1, max(|a|, |b|)). math-verify compares decimals rounded to six places, so that 1/3 is 0.333333,
but also 0.0000001 is 0; therefore the error is also relative to the size of the numbers."""

_WORDS = [word for word in (*SCALES, *PARTS) if word not in COINS]
_UNSIGNED = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])(?:\.[0-9]*)?|[0-9]+(?:\.[0-9]*)?|\.[0-9]+)"
_TEN = r"(?:e|E|\s*(?:\\times|\\cdot|\*|x)\s*10\s*(?:\^|\*\*)\s*)\{?\(?\s*(?P<exponent>[-+]?[0-9]{1,3})\s*\)?\}?"
_DECIMAL = re.compile(rf"(?P<mantissa>{_UNSIGNED})(?:{_TEN})?(?:\s*(?P<scale>{'|'.join(_WORDS)})s?)?")
_TEN_TO_THE = re.compile(r"10\s*\^\s*\{?\s*(?P<exponent>[-+]?[0-9]{1,3})\s*\}?")
_RATIO = re.compile(rf"(?:(?P<whole>[0-9]+)\s+)?(?P<top>{_UNSIGNED})\s*/\s*(?P<bottom>{_UNSIGNED})")
_FRAC = re.compile(
    rf"(?P<whole>[0-9]+)?\s*\\frac\s*\{{\s*(?P<top>-?\s*{_UNSIGNED})\s*\}}\s*\{{\s*(?P<bottom>-?\s*{_UNSIGNED})\s*\}}"
)
_REPEATING = re.compile(
    r"(?P<whole>[0-9]*)\.(?P<fixed>[0-9]*)(?:\\(?:over(?:line|bar)|bar|dot)\s*\{|\()(?P<cycle>[0-9]+)[})]"
)
_GOING_ON = re.compile(r"(?P<whole>[0-9]*)\.(?P<digits>[0-9]+)\s*\.\.\.")


@dataclass(frozen=True)
class PlainNumber:
    """A rational number as it was written.

    Attributes:
        value: its value, ignoring the percent sign.
        decimal: True if it was written as a decimal.
        percent: True if it was written with a percent sign.
    """

    value: Fraction
    decimal: bool = False
    percent: bool = False


def parse_plain_number(text: str) -> PlainNumber | None:
    """Return the text as a number, or None if it is not a single number of at most `MAX_DIGITS` characters."""
    if len(text) > MAX_DIGITS:
        return None
    body = text.strip()
    percent = body.endswith("%")
    body = body.removesuffix("%").strip()
    sign = -1 if body.startswith("-") else 1
    body = body[1:].strip() if body.startswith(("-", "+")) else body
    if body.startswith("(") and body.endswith(")") and percent:
        body = body[1:-1].strip()
    for pattern, read in _READERS:
        if match := pattern.fullmatch(body):
            value = read(match)
            return None if value is None else PlainNumber(sign * value, pattern is _DECIMAL and "." in body, percent)
    return None


def is_close(answer: PlainNumber, reference: PlainNumber) -> bool:
    """Return True if two numbers are equal: exactly, or within `TOLERANCE` if one is a decimal.

    If only one side has a percent sign, both readings are accepted: 50% equals 50 and 0.5. MATH's grader drops the sign
    (Hendrycks et al. 2021, https://arxiv.org/abs/2103.03874); math-verify accepts both readings.
    """
    decimal = answer.decimal or reference.decimal
    if answer.percent == reference.percent:
        return is_within_tolerance(answer.value, reference.value, decimal)
    ours, theirs = (number.value / 100 if number.percent else number.value for number in (answer, reference))
    return is_within_tolerance(answer.value, reference.value, decimal) or is_within_tolerance(ours, theirs, decimal)


def is_within_tolerance(answer: Fraction, reference: Fraction, decimal: bool) -> bool:
    """Return True if two values are equal, exactly or, for decimals, within `TOLERANCE`."""
    if answer == reference or not decimal:
        return answer == reference
    return abs(answer - reference) <= TOLERANCE * min(Fraction(1), max(abs(answer), abs(reference)))


def _parse_decimal(match: re.Match[str]) -> Fraction:
    value = _parse_exact(match["mantissa"]) * Fraction(10) ** int(match["exponent"] or 0)
    scale = match["scale"]
    return value * SCALES[scale] if scale in SCALES else value / PARTS[scale] if scale else value


def _parse_power_of_ten(match: re.Match[str]) -> Fraction:
    return Fraction(10) ** int(match["exponent"])


def _parse_ratio(match: re.Match[str]) -> Fraction | None:
    bottom = _parse_exact(match["bottom"])
    return int(match["whole"] or 0) + _parse_exact(match["top"]) / bottom if bottom else None


def _parse_repeating(match: re.Match[str]) -> Fraction:
    fixed, cycle = match["fixed"], match["cycle"]
    nines = 10 ** len(fixed) * (10 ** len(cycle) - 1)
    return int(match["whole"] or 0) + (int(fixed + cycle) - int(fixed or 0)) / Fraction(nines)


def _parse_ellipsis(match: re.Match[str]) -> Fraction | None:
    """Return the value of a decimal whose last digits repeat: one digit three times, or several digits twice."""
    digits = match["digits"]
    for length in range(1, len(digits) // 2 + 1):
        times = 3 if length == 1 else 2
        cycle = digits[-length:]
        if digits.endswith(cycle * times):
            nines = 10 ** (len(digits) - length) * (10**length - 1)
            return int(match["whole"] or 0) + (int(digits) - int(digits[:-length] or 0)) / Fraction(nines)
    return None


def _parse_exact(digits: str) -> Fraction:
    return Fraction(digits.replace(",", "").replace(" ", "").rstrip("."))


_READERS = (
    (_DECIMAL, _parse_decimal),
    (_TEN_TO_THE, _parse_power_of_ten),
    (_RATIO, _parse_ratio),
    (_FRAC, _parse_ratio),
    (_REPEATING, _parse_repeating),
    (_GOING_ON, _parse_ellipsis),
)
