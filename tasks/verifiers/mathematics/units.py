r"""Units of answers: a missing unit is ignored, a different one makes the answers unequal.

5 cm is 5 where the other side names no unit, as in the graders of MATH, and 5 cm is not 5 m. Nothing is converted: 1 m
is not 100 cm, since a problem that asks for centimetres asks for 100. A bare letter is a unit only behind a plain
number and a space (5 m, 25 m^2), for 5m, k = 2 m and \pi r^2 h are products; an upright one (`\text{ m}`) always is.
A word in another script behind a number is a unit too (12元), unless it may change the value.
"""

from __future__ import annotations

import re

from tasks.verifiers.mathematics.plain_numbers import plain_number

MAX_CHARS = 300
"""Longest text in which a unit is looked for, in characters: the search is quadratic."""

_NAMES = {
    "cm": "cm centimeter centimetre",
    "mm": "mm millimeter millimetre",
    "km": "km kilometer kilometre",
    "m": "m meter metre",
    "in": "in inch inche",
    "ft": "ft foot feet",
    "yd": "yd yard",
    "mi": "mi mile",
    "kg": "kg kilogram",
    "g": "g gram gm",
    "mg": "mg milligram",
    "lb": "lb pound",
    "oz": "oz ounce",
    "t": "ton tonne",
    "l": "l L liter litre",
    "ml": "ml mL milliliter millilitre",
    "gal": "gal gallon",
    "s": "s sec second",
    "min": "min minute",
    "h": "h hr hour",
    "day": "day",
    "week": "week",
    "month": "month",
    "year": "year yr",
    "dollar": "dollar usd USD buck",
    "cent": "cent",
    "euro": "euro eur EUR",
    "rupee": "rupee Rs",
    "yen": "yen",
    "degree": "degree deg",
    "celsius": "celsius Celsius",
    "fahrenheit": "fahrenheit Fahrenheit",
    "radian": "radian rad",
    "mph": "mph",
    "kmh": "kmh kph kmph",
    "unit": "unit",
    "newton": "N newton Newton",
    "joule": "J joule Joule",
    "watt": "W watt Watt",
    "volt": "V volt Volt",
}
_CANONICAL = {spelling: unit for unit, spellings in _NAMES.items() for spelling in spellings.split()}
_SPELLINGS = {
    letter: next(name for name in spellings.split() if len(name) > 2)
    for spellings in _NAMES.values()
    for letter in spellings.split()
    if len(letter) == 1
}
_COMPOUND = {"km/h": "kmh", "mi/h": "mph"}
_CURRENCIES = {
    "$": "dollar",
    "USD": "dollar",
    "\\$": "dollar",
    "\u20ac": "euro",
    "\u00a3": "sterling",
    "\u00a5": "yen",
    "\u20b9": "rupee",
}

_ROMAN = re.compile(
    r"([0-9})]\s*)\\(?:text|textrm|mathrm|mbox)\s*\{[~\s]*(["
    + "".join(n for n in _CANONICAL if len(n) == 1)
    + r"])[\s.]*\}"
)
_OTHER_SCRIPT = re.compile(
    r"(?P<value>-?[0-9][0-9.,/]*)\s*(?P<name>[^\W\d_A-Za-z\u0370-\u03ff][^\x00-\x7f\s\u2150-\u22ff]*|[\u20ac\u00a3\u00a5\u20b9])"
)
OTHER_SCALES = (
    r"[万亿兆億萬百半만억천백반]|[千十](?![克米瓦卡])"
    r"|тыс|милли|мл|соте?н|полов|ألف|ملي|نصف|مئ|लाख|करो|हज|हज़|सौ"
)
"""Pattern of the beginnings of words in other scripts that change the number before them: ten thousand, half."""
_SCALES = re.compile(OTHER_SCALES)

LONG_NAMES = "|".join(sorted((name for name in _CANONICAL if len(name) > 1), key=len, reverse=True))
"""Pattern of the names of units of more than one letter, without a plural's ending."""
SHORT_NAMES = "".join(name for name in _CANONICAL if len(name) == 1)
"""Units of one letter, to be put into the brackets of a pattern."""
_POWER = r"(?:\s*\^\s*\{?\s*(?P<{0}power>[23])\s*\}?|(?<=[a-z][a-z])(?P<{0}digit>[23]))?"
_SHAPE = r"(?:(?P<{0}shape>square|sq\.?|cubic|cu\.?)\s*)?"
_ANY = rf"(?P<{{0}}name>(?:{LONG_NAMES})(?:e?s)?|[{SHORT_NAMES}])"
_UNIT = re.compile(
    r"(?P<value>.*?[0-9a-zA-Z)}%.\]])(?P<gap>\s*)"
    + (_SHAPE + _ANY + _POWER).replace("{0}", "a")
    + r"(?:\s*(?:/|\bper\b)\s*"
    + (_SHAPE + _ANY + _POWER).replace("{0}", "b")
    + r")?"
)
_DEGREES = re.compile(
    r"(?P<value>(?!.*\\(?:sin|cos|tan|cot|sec|csc)).*\S)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(?P<scale>[CF]|[Cc]elsius|[Ff]ahrenheit)?",
    re.DOTALL,
)
_MONEY = re.compile(
    r"(?P<sign>-?)\s*(?P<currency>\\?\$|USD|[\u20ac\u00a3\u00a5\u20b9])\s*(?P<value>[0-9.,]+.*)", re.DOTALL
)


def is_unit(word: str) -> bool:
    """Return True if a word is the name of a unit, in the singular or the plural."""
    return any(stem in _CANONICAL for stem in (word, word.removesuffix("s"), word.removesuffix("es")))


def split_unit(text: str) -> tuple[str, str | None]:
    """Split a text into its value and its unit in one spelling ("cm", "km/h", "m^2"); None for no unit."""
    if len(text) > MAX_CHARS:
        return text, None
    if money := _MONEY.fullmatch(text):
        return money["sign"] + money["value"], _CURRENCIES[money["currency"]]
    if degrees := _DEGREES.fullmatch(text):
        return degrees["value"], {"c": "celsius", "f": "fahrenheit"}.get((degrees["scale"] or "")[:1].lower(), "degree")
    if (other := _OTHER_SCRIPT.fullmatch(text)) and not _SCALES.search(other["name"]):
        return other["value"], _CURRENCIES.get(other["name"], other["name"])
    unit = _UNIT.fullmatch(text)
    if unit is None or not _stands_apart(unit):
        return text, None
    name = _one(unit["ashape"], unit["aname"], unit["apower"] or unit["adigit"])
    if unit["bname"]:
        name = f"{name}/{_one(unit['bshape'], unit['bname'], unit['bpower'] or unit['bdigit'])}"
    return unit["value"].strip(), _COMPOUND.get(name, name)


def spelled_out(text: str) -> str:
    r"""Return a text of LaTeX in which upright letters behind a value are named units: 5 meter for `5 \mathrm{~m}`."""
    return _ROMAN.sub(lambda unit: f"{unit[1]} {_SPELLINGS[unit[2]]}", text)


def _stands_apart(unit: re.Match[str]) -> bool:
    """Return True if it is a unit, not a variable or the end of a word.

    No letter may precede it. A letter needs a gap and a plain number before it, or another unit behind it (m/s). Of
    these units only metres have a power.
    """
    gap, name, last = unit["gap"], unit["aname"], unit["value"][-1]
    if len(name) > 1:
        return bool(gap) or not last.isalpha()
    numbered = plain_number(unit["value"]) is not None or unit["bname"] is not None
    return bool(gap) and numbered and (unit["apower"] is None or name == "m")


def _one(shape: str | None, name: str, power: str | None) -> str:
    exponent = power or {"s": "2", "c": "3"}.get((shape or "")[:1])
    stem = next(stem for stem in (name, name.removesuffix("s"), name.removesuffix("es")) if stem in _CANONICAL)
    return f"{_CANONICAL[stem]}^{exponent}" if exponent else _CANONICAL[stem]
