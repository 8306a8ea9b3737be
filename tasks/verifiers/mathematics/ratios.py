"""Compares numbers with colons between them: times of day and ratios.

3:30, 3:30 PM, 4 p.m.   time    equal if hour, minute and AM/PM are equal; AM/PM is ignored if the reference has none
1:2, 3 to 2, 1:2:3      ratio   equal if proportional; a ratio with a zero equals no ratio

If both sides have two digits after a single colon, they are times, so that 1:00 is not 2:00.
"""

from __future__ import annotations

import re
from fractions import Fraction

_TIME = re.compile(
    r"(?P<hour>[01]?[0-9]|2[0-3])(?:\s*:\s*(?P<minute>[0-5][0-9]))?\s*(?:(?P<half>[AaPp])\.?\s?[Mm]\.?)?"
)
_SEPARATOR = re.compile(r"\s*(?::|\bto\b)\s*")
_MEMBER = re.compile(r"[0-9]{1,15}(?:\.[0-9]{1,15})?|\.[0-9]{1,15}")


def compare_times_or_ratios(answer: str, reference: str) -> bool | None:
    """Return True if two times or two ratios are equal, or None if the sides are not both times or both ratios."""
    ours, theirs = _TIME.fullmatch(answer), _TIME.fullmatch(reference)
    if ours and theirs and (ours["minute"] or ours["half"]) and (theirs["minute"] or theirs["half"] or ours["half"]):
        same = int(ours["hour"]) == int(theirs["hour"]) and int(ours["minute"] or 0) == int(theirs["minute"] or 0)
        return same and (theirs["half"] is None or (ours["half"] or "").lower() == theirs["half"].lower())
    left, right = _parse_members(answer), _parse_members(reference)
    if left is None or right is None:
        return None
    return len(left) == len(right) and all(left + right) and len({a / b for a, b in zip(left, right, strict=True)}) == 1


def _parse_members(text: str) -> list[Fraction] | None:
    """Return the members of a ratio of plain numbers, or None if the text is not a ratio."""
    parts = _SEPARATOR.split(text)
    return [Fraction(part) for part in parts] if len(parts) > 1 and all(map(_MEMBER.fullmatch, parts)) else None
