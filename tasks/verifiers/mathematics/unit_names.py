r"""Defines unit names. A word is always a unit, a letter only after a number, and some letters only if upright.

parsecs, km/h, eV     a word, which cannot be a product of variables
5 m, 300 nm           one or two letters, which may also be variables
5 \mathrm{~T}         a letter that more often means a variable or a thousand than a unit
"""

from __future__ import annotations

import json
import re
from pathlib import Path

_TABLES = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
_NAMES: dict[str, list[str]] = _TABLES["names"]  # spellings by unit
LETTERS: dict[str, str] = _TABLES["letters"]
"""Units by the one or two letters that may mean them after a number."""
_UPRIGHT: dict[str, str] = _TABLES["upright_letters"]
COMPOUND: dict[str, dict[str, int]] = _TABLES["compound"]
"""Units that are products of other units, with the exponents of the other units."""
_WORDS = {spelling: unit for unit, spellings in _NAMES.items() for spelling in spellings}
_FIRST = {unit: spellings[0] for unit, spellings in _NAMES.items()}

UPRIGHT_ONLY = frozenset(_UPRIGHT)
"""Letters that are units only if they are set upright, such as K, M and A."""
LONG_NAMES = "|".join(sorted(_WORDS, key=len, reverse=True))
"""Pattern of the unit names that are words, without plural endings."""
SHORT_NAMES = "".join(letter for letter in LETTERS if len(letter) == 1)
"""Units of one letter, for a character class in a pattern."""


def find_unit(word: str) -> str | None:
    """Return the unit with the given name, in the singular or plural, or None if it is not a unit name."""
    return next(
        (_WORDS[stem] for stem in (word, word.removesuffix("s"), re.sub("es$", "", word)) if stem in _WORDS), None
    )


def find_unit_word(name: str) -> str | None:
    """Return the word for the unit of an upright name, or None if it is not a unit."""
    unit = LETTERS.get(name) or _UPRIGHT.get(name) or find_unit(name)
    return _FIRST[unit] if unit else None


def is_unit(word: str) -> bool:
    """Return True if a word is the name of a unit, in the singular or plural, or a letter for one."""
    return find_unit(word) is not None or word in LETTERS
