"""Converts English number words to digits: twenty-one, three quarters, 7 hundredths.

seven apples ─► 7 apples      minus two thirds ─► -2/3      seven point five ─► 7.5      2 and a half ─► 2 1/2
"""

from __future__ import annotations

import re
from itertools import takewhile

_BELOW_20 = """
zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen
nineteen"""
_TENS = "twenty thirty forty fifty sixty seventy eighty ninety"
CARDINALS = {word: number for number, word in enumerate(_BELOW_20.split())} | {
    word: 10 * number for number, word in enumerate(_TENS.split(), 2)
}
"""Integers of one word, by word: all below 20, and the tens below 100."""
_POWERS = {"thousand": 10**3, "million": 10**6, "billion": 10**9, "trillion": 10**12}
SCALES = {"dozen": 12, "hundred": 100, "lakh": 10**5, "lac": 10**5, "crore": 10**7, **_POWERS}
"""Words after a number that multiply it, with the factor."""
_IRREGULAR = {"half": 2, "halve": 2, "third": 3, "quarter": 4, "fifth": 5, "eighth": 8, "ninth": 9, "twelfth": 12}
PARTS = _IRREGULAR | {
    f"{re.sub('y$', 'ie', word)}th": number
    for word, number in (CARDINALS | {"hundred": 100} | _POWERS).items()
    if number >= 4 and word not in ("five", "eight", "nine", "twelve")
}
"""Words after a number that divide it, in the singular, with the divisor."""
COINS = ("quarter",)
"""Words of `PARTS` that are also names of things, which a number before them may count."""
_OTHERS = ("score", "gross", "myriad", "googol")

_STARTS = re.compile(rf"(?:(?:minus|negative)\s+)?(?:{'|'.join(CARDINALS)})(?![A-Za-z])", re.IGNORECASE)
_PART = f"(?P<part>{'|'.join(PARTS)})"
_ONE_PART = re.compile(
    rf"(?:(?:(?P<whole>-?[0-9]++) and )?(?:a|one)[ -]{_PART}|half)(?P<rest> (?!of\b).+)?", re.IGNORECASE
)
_WORD = re.compile(r"[A-Za-z']+")
_NOT_WORDS = re.compile(r"[^A-Za-z' -]")
_HUNDRED = 100


def is_number_word(word: str) -> bool:
    """Return True if a word is a number or scales one, in the singular or plural: seven, lakh, tenths, twenties."""
    word = word.casefold()
    stems = (word, word.removesuffix("s"), word.removesuffix("es"), re.sub("ies$", "y", word))
    return any(stem in known for stem in stems for known in (CARDINALS, SCALES, PARTS, _OTHERS))


def is_part(word: str) -> bool:
    """Return True if a word divides the number before it, in the singular or plural: half, tenths."""
    return word.casefold() in PARTS or word.casefold().removesuffix("s") in PARTS


def is_ordinal(word: str) -> bool:
    """Return True if a word may be an ordinal number: sixth, as in 76 sixth graders."""
    return word.casefold() in PARTS and word.casefold() not in (*COINS, "half", "halve")


def convert_to_digits(text: str) -> str:
    """Return a text with the number words at its start as digits; any other text is returned unchanged."""
    if part := _ONE_PART.fullmatch(text):
        whole = f"{part['whole']} " if part["whole"] else ""
        return f"{whole}1/{PARTS[(part['part'] or 'half').casefold()]}{part['rest'] or ''}"
    if not _STARTS.match(text) or _NOT_WORDS.search(text):
        return text
    words = list(_WORD.finditer(text))
    names = [word.group().casefold() for word in words]
    sign = "-" if names[0] in ("minus", "negative") else ""
    value, end = _parse_cardinal(names, len(sign))
    number = f"{sign}{value}"
    if names[end : end + 1] == ["point"] and (decimals := _join_digits(names[end + 1 :])):
        number, end = f"{number}.{decimals}", end + 1 + len(decimals)
    elif names[end : end + 2] == ["and", "a"] and (below := PARTS.get("".join(names[end + 2 : end + 3]))):
        number, end = f"{number} 1/{below}", end + 3
    elif end < len(names) and (below := PARTS.get(names[end]) or PARTS.get(names[end].removesuffix("s"))):
        number, end = f"{number}/{below}", end + 1
    if any(word.group()[0].isupper() for word in words[end:]):  # a name, such as Three Musketeers, counts nothing
        return text
    return f"{number} {text[words[end].start() :]}" if end < len(words) else number


def _join_digits(names: list[str]) -> str:
    return "".join(str(CARDINALS[name]) for name in takewhile(lambda name: CARDINALS.get(name, 10) < 10, names))


def _parse_cardinal(names: list[str], start: int) -> tuple[int, int]:
    """Return the number that starts at a word, and the position of the word after it."""
    total, limit, end = 0, max(_POWERS.values()) * 1000, start
    while True:
        part, after = _parse_below_thousand(names, end)
        power = _POWERS.get(names[after], 1) if after > end and after < len(names) else 1
        if after == end or power >= limit:
            return total, end
        total, limit, end = total + part * power, power, after + (power > 1)
        if power == 1:
            return total, end
        if names[end : end + 1] == ["and"] and _parse_below_thousand(names, end + 1)[1] > end + 1:
            end += 1


def _parse_below_thousand(names: list[str], start: int) -> tuple[int, int]:
    value, end = _parse_below_hundred(names, start)
    if end == start or value > 9 or names[end : end + 1] != ["hundred"]:
        return value, end
    end += 1
    skipped = names[end : end + 1] == ["and"]
    rest, after = _parse_below_hundred(names, end + skipped)
    return value * _HUNDRED + rest, after if after > end + skipped else end


def _parse_below_hundred(names: list[str], start: int) -> tuple[int, int]:
    """Return a number below 100 and the position after it, or 0 and `start` if no such number starts there."""
    if start >= len(names) or names[start] not in CARDINALS:
        return 0, start
    value = CARDINALS[names[start]]
    ones = CARDINALS.get(names[start + 1], 0) if value >= 20 and start + 1 < len(names) else 0
    return (value + ones, start + 2) if 0 < ones < 10 else (value, start + 1)
