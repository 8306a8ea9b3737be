"""Units of answers: a missing unit is ignored, a different one makes the answers unequal.

5 cm is 5 where the other side names no unit, as in the graders of MATH, and 5 cm is not 5 m. Nothing is converted: 1 m
is not 100 cm, since a problem that asks for centimetres asks for 100. A unit of one letter counts only after a space (5
m), for 5m may be a product.
"""

from __future__ import annotations

import re

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

_LONG = "|".join(sorted((name for name in _CANONICAL if len(name) > 1), key=len, reverse=True))
_SHORT = "".join(name for name in _CANONICAL if len(name) == 1)
_POWER = r"(?:\s*\^\s*\{?\s*(?P<{0}power>[23])\s*\}?|(?<=[a-z][a-z])(?P<{0}digit>[23]))?"
_SHAPE = r"(?:(?P<{0}shape>square|sq\.?|cubic|cu\.?)\s*)?"
_ANY = rf"(?P<{{0}}name>(?:{_LONG})(?:e?s)?|[{_SHORT}])"
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
    unit = _UNIT.fullmatch(text)
    if unit is None or not _stands_apart(unit):
        return text, None
    name = _one(unit["ashape"], unit["aname"], unit["apower"] or unit["adigit"])
    if unit["bname"]:
        name = f"{name}/{_one(unit['bshape'], unit['bname'], unit['bpower'] or unit['bdigit'])}"
    return unit["value"].strip(), _COMPOUND.get(name, name)


def _stands_apart(unit: re.Match[str]) -> bool:
    """Return True if it is a unit, not a variable or the end of a word.

    No letter may precede it, and a gap must precede one letter.
    """
    gap, last = unit["gap"], unit["value"][-1]
    return bool(gap) or (len(unit["aname"]) > 1 and not last.isalpha())


def _one(shape: str | None, name: str, power: str | None) -> str:
    exponent = power or {"s": "2", "c": "3"}.get((shape or "")[:1])
    stem = next(stem for stem in (name, name.removesuffix("s"), name.removesuffix("es")) if stem in _CANONICAL)
    return f"{_CANONICAL[stem]}^{exponent}" if exponent else _CANONICAL[stem]
