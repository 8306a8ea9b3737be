"""Splits nouns off a number if they only name the counted things.

    5 apples     12 red balls     3 cups of sugar     20 in total     1 apple            the number is the value
    7 lakh     7 below zero     7 point five     7 twelfths     7 modulo nine     7 less    it is not, or not alone

Words in the singular can change the number in more ways than a list could contain. So a noun is only split off if it is
known to be counted: it is in the plural, or in the singular after a number of at most 1, and no word between it and the
number is about numbers, comparisons or calculations.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from tasks.verifiers.mathematics.number_words import SCALES, is_number_word, is_ordinal, is_part
from tasks.verifiers.mathematics.plain_numbers import parse_plain_number
from tasks.verifiers.mathematics.unit_expressions import join_unit_names
from tasks.verifiers.mathematics.unit_names import find_unit

MAX_WORDS, MAX_CHARS = 8, 200
"""Maximum number of words, and of characters, after a number that are read as a noun phrase."""

_COUNTED = re.compile(r"(?P<value>.*[0-9})!])\s+(?P<words>[A-Za-z][A-Za-z' -]*)", re.DOTALL)
_SCALED = re.compile(rf"(?:{'|'.join(SCALES)})s?\s+", re.IGNORECASE)
_AFTERWARDS = re.compile(
    r"\s*\b(?:in\s+(?:total|all)|on\s+average|total|altogether|overall|combined|left|remaining|each|apiece|more|old|long"
    r"|tall|wide|high|deep|apart|away|ago|ahead|late|early|(?:old|young|fast|slow|long|tall|cheap|lat|heavi)er|farther"
    r"|further|earlier|per\s+[A-Za-z-]+|(?:a|an)\s+(?:day|week|month|year|hour|minute))$"
)
_NARROWED = re.compile(r"\s(?:of|with|without|in|on|at|from|for)\s")
_ARTICLES = frozenset(("the", "a", "an", "his", "her", "their", "its", "your", "my", "them"))
_IRREGULAR = """
people men women children persons mice geese feet teeth oxen sheep fish deer dice data vertices series species cattle
offspring aircraft"""
_IRREGULAR_PLURALS = tuple(_IRREGULAR.split())
_NO_PLURALS = frozenset(
    ("times", "plus", "minus", "versus", "modulus", "thus", "does", "has", "was", "yes", "always", "perhaps", "besides")
)
_CLOSED_WORDS = """
a an the this that these those all both any some no not nor neither none never only and or but if than as so such above
across after against along among around at before behind below beneath between beyond by down during except for from in
inside into like mod modulo near of off on onto out outside over past since through to toward towards under underneath
until up upon via with within without less least most greater smaller larger lower higher short plus minus times
divided multiplied squared cubed root factorial remainder percent per point basis negative positive inverse opposite
reciprocal double twice triple thrice is are was were be been will did do does he she it they i january february march
april may june july august september october november december"""
_CLOSED = frozenset(_CLOSED_WORDS.split())
"""Words that are neither nouns nor adjectives, and other words whose effect on a number is not known."""


class Counted(NamedTuple):
    """A value with the noun of the counted things.

    Attributes:
        value: text of the value.
        noun: the noun in lower case, or None if there is no noun that may be split off.
    """

    value: str
    noun: str | None


def split_noun(text: str) -> Counted:
    """Split a normalised text into its value and the noun after it; a noun that may change the value is not split."""
    match = _COUNTED.fullmatch(text)
    if match is None or len(match["words"]) > MAX_CHARS:
        return Counted(text, None)
    value, words = match["value"], join_unit_names(match["words"].strip())
    if scale := _SCALED.match(words):
        value, words = f"{value} {scale.group().strip()}", words[scale.end() :]
    bare = _drop_trailing_words(words)
    if not bare:
        return Counted(value, "")
    if bare.count(" ") >= MAX_WORDS:
        return Counted(text, None)
    number = parse_plain_number(value)
    noun = _parse_noun(bare.casefold(), number is not None and abs(number.value) <= 1)
    return Counted(value, noun) if noun else Counted(text, None)


def _drop_trailing_words(words: str) -> str:
    """Return the words without trailing words that do not change a number: in total, left, each, per day."""
    while (tail := _AFTERWARDS.search(words)) and not is_number_word(words.rsplit(maxsplit=1)[-1]):
        words = words[: tail.start()].rstrip()
    return words


def _parse_noun(phrase: str, few: bool) -> str | None:
    """Return the noun of a phrase such as "red balls" or "cups of sugar", or None for any other phrase."""
    head, *narrowed = _NARROWED.split(phrase)
    *before, noun = head.split() or [""]
    if not all(map(_is_content, (*before, noun))) or not all(
        map(_is_content, set(" ".join(narrowed).split()) - _ARTICLES)
    ):
        return None
    plural = len(noun) > 3 and noun.endswith("s") and not noun.endswith(("ss", "is")) and noun not in _NO_PLURALS
    counts = plural or noun.endswith(_IRREGULAR_PLURALS) or find_unit(noun) is not None
    return noun if counts or (few and len(noun) > 2) else None


def _is_content(word: str) -> bool:
    """Return True if a word may be a noun or an adjective: it is not in the lists of other words."""
    first, hyphen, last = word.rpartition("-")
    if hyphen:
        return bool(first) and not is_part(last)
    return len(word) > 1 and word not in _CLOSED and (word == "ones" or is_ordinal(word) or not is_number_word(word))
