r"""Extracts the last number of a text for mode `gsm8k`; a number is read completely or not at all.

#### 3/4     #### 1 1/2     #### 5 million     #### 18 dollars     read as one number: 3/4, 3/2, 5,000,000, 18
#### 2^5     #### sqrt(16)     #### 7 below zero     \boxed{5!}     no number
#### 3 of 4     it costs 18 dollars, not 20                        the last of several: 4, 20; none in a box
"""

from __future__ import annotations

import re

from tasks.verifiers.mathematics.counted import split_noun
from tasks.verifiers.mathematics.normalisation import remove_text_commands, tidy
from tasks.verifiers.mathematics.plain_notation import FUNCTIONS
from tasks.verifiers.mathematics.plain_numbers import MAX_DIGITS, parse_plain_number
from tasks.verifiers.mathematics.plain_text import CHANGES_VALUE_BEFORE, is_standalone
from tasks.verifiers.mathematics.units import split_unit

_GROUPED = re.compile(r"(?<![0-9.,])[0-9]{1,3}(?:(?:,[0-9]{3})+|(?: [0-9]{3})+)(?![0-9])|(?<=[0-9]),(?=[0-9])")
_BRACED = re.compile(r"(?<![\w}^])\{([^{}\\]*)\}")
_NEGATIVE = re.compile(r"\b(?:negative|minus)\s+(?=\$?[0-9.])", re.IGNORECASE)
_NUMBER = re.compile(
    r"(?:(?<![\w)])[-+]\$?)?(?:[0-9]++ ++(?=[0-9]++/[0-9])[0-9]++|[0-9]++(?:\.[0-9]++)?|\.[0-9]++)"
    r"(?:/[0-9]++(?![.,]?[0-9]))?"
)
_PIECE_BEFORE = re.compile(
    r"(?:\^\s*\{?|[A-Za-z]\+|[0-9)}%]\s*[-+/\u00d7\u00f7\u00b7]\s*\$?|[0-9)]\s*(?:\*|\bx\b)\s*\$?"
    r"|\\(?:times|cdot|div|pm|frac|sqrt)\s*\{?|\u00b1\s*|\u221a\s*\(?"
    rf"|(?<![A-Za-z])(?:{FUNCTIONS})\s*[({{])$"
)
_PIECE_AFTER = re.compile(
    r"\s*(?:[\^\u00d7\u00f7\u00b7\u00b9\u00b2\u00b3\u2070-\u2079]|[*/]\s*[0-9(]|\+\s*[0-9A-Za-z(\\$]|\\(?:times|cdot|div|pm|frac|sqrt)|:[0-9])"
    r"|-[0-9]"
)
_CHANGED = re.compile(rf"\s*(?:{CHANGES_VALUE_BEFORE}|less\b|squared\b|cubed\b|factorial\b|mod\b)", re.IGNORECASE)
_HOUR_BEFORE = re.compile(r"[0-9]:$")
_REACH = 12
"""Number of characters before a number that are searched for an operator."""


def find_only_number(boxed: str) -> str | None:
    """Return the number in a box after its last equals sign, or None if there is none or several."""
    text = boxed.rpartition("=")[2]
    return _parse_whole(text) or find_last_number(text, several=False, factorial=True, changed=True)


def find_stated_number(line: str) -> str | None:
    """Return the number of the line after the hashes: the whole line as a number, or else its last number."""
    return _parse_whole(line) or find_last_number(line, changed=True)


def _parse_whole(text: str) -> str | None:
    """Return a short text as one number, without its unit or noun, or None if it is not a number."""
    if len(text) > 2 * MAX_DIGITS:
        return None
    text = tidy(text)
    number = (
        parse_plain_number(text)
        or parse_plain_number(split_unit(text)[0])
        or parse_plain_number(split_noun(text).value)
    )
    return str(number.value) if number else None


def find_last_number(text: str, several: bool = True, factorial: bool = False, changed: bool = False) -> str | None:
    """Return the last number of a text, or None if there is none or it is part of an expression.

    Args:
        text: the text.
        several: True if there may be other numbers before it.
        factorial: True to return None if "!" follows the number.
        changed: True to return None if a word that changes the value follows the number.
    """
    text = _BRACED.sub(r" \1 ", remove_text_commands(text))
    text = _NEGATIVE.sub("-", _GROUPED.sub(lambda number: re.sub("[ ,]", "", number.group()), text))
    numbers = [number for number in _NUMBER.finditer(text) if is_standalone(number)]
    if not numbers or (len(numbers) > 1 and not several):
        return None
    number = numbers[-1]
    before, end = text[max(0, number.start() - _REACH) : number.start()], number.end()
    minutes = len(number.group()) <= 2 and _HOUR_BEFORE.search(before)
    piece = minutes or _PIECE_BEFORE.search(before) or _PIECE_AFTER.match(text, end)
    if piece or (changed and _CHANGED.match(text, end)) or (factorial and text.startswith("!", end)):
        return None
    value = parse_plain_number(number.group().replace("$", ""))
    return None if value is None else str(value.value)
