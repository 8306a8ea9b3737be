r"""Splits units off answers. A missing unit is ignored; different units make answers unequal.

5 cm equals 5 if the other side has no unit, as in the graders of MATH, but 5 cm is not 5 m. Units are not converted:
1 m is not 100 cm, because the answer in centimetres is 100. A bare letter is a unit only after a plain number and a
space (5 m, 25 m^2), because 5m, k = 2 m and \pi r^2 h are products. A product of letters is a unit only with a division
sign (5 m/s) or after a measured number (2.5 s^{-1}, 3 \times 10^8 m s^{-1}). An upright letter (`\text{ m}`) is always
a unit. A word in another script after a number is also a unit (12元), unless it may change the value.
"""

from __future__ import annotations

import re

from tasks.verifiers.mathematics.plain_numbers import parse_plain_number
from tasks.verifiers.mathematics.unit_expressions import (
    MAX_TOKENS,
    TAIL,
    UnitExpression,
    join_unit_names,
    read_units,
    tokenize,
)
from tasks.verifiers.mathematics.unit_names import UPRIGHT_ONLY, find_unit, find_unit_word

MAX_CHARS = 300
"""Maximum characters of a text that is searched for a unit; the search is quadratic."""

_CURRENCIES = {
    "$": "dollar",
    "USD": "dollar",
    "\\$": "dollar",
    "\u20ac": "euro",
    "\u00a3": "sterling",
    "\u00a5": "yen",
    "\u20b9": "rupee",
}
_OTHER_SCRIPT = re.compile(
    r"(?P<value>-?[0-9][0-9.,/]*)\s*(?P<name>[^\W\d_A-Za-z\u0370-\u03ff][^\x00-\x7f\s\u2150-\u22ff]*|[\u20ac\u00a3\u00a5\u20b9])"
)
OTHER_SCALES = (
    r"[万亿兆億萬百半만억천백반]|[千十](?![克米瓦卡])"
    r"|тыс|милли|мл|соте?н|полов|ألف|ملي|نصف|مئ|लाख|करो|हज|हज़|सौ"
)
"""Pattern of word beginnings in other scripts that change the number before them, such as ten thousand or half."""
_SCALES = re.compile(OTHER_SCALES)
_DEGREES = re.compile(
    r"(?P<value>(?!.*\\(?:sin|cos|tan|cot|sec|csc)).*\S)\s*(?:\^\s*\{?\s*\\circ\s*\}?|\\degree)\s*(?P<scale>[CF]|[Cc]elsius|[Ff]ahrenheit)?",
    re.DOTALL,
)
_MONEY = re.compile(
    r"(?P<sign>-?)\s*(?P<currency>\\?\$|USD|[\u20ac\u00a3\u00a5\u20b9])\s*(?P<value>[0-9.,]+.*)", re.DOTALL
)
_MEASURED = re.compile(r"\.[0-9]|\\times|\\cdot|[0-9][eE][-+]?[0-9]")
_ONE_OVER = re.compile(r"(?<=[0-9})])\s+1\s*/\s*(?=[A-Za-z])")
_TORQUE = "m newton"
_NUMERIC = re.compile(r"[0-9\\]")
_SCIENTIFIC = re.compile(r"10\s*\^\s*\{?\s*[-+]?[0-9]+\s*\}?\s*|[0-9][eE][-+]?[0-9]+\s*")

_GAP_BEFORE = re.compile(r"(?:[\s~)}]|\\[,;:! ]|\\cdot|/)$")
_SPACE = re.compile(r"\\[,;:! ]|~|\\q?quad(?![A-Za-z])")
_UPRIGHT = r"\\(?:text|textrm|mathrm|mbox|rm|operatorname)\s*\{"
_NESTED = r"((?:[^{}]|\{[^{}]*\})*)\}"
_GROUP = re.compile(rf"(?:{_UPRIGHT}|\{{(?=~)|(?<![\\A-Za-z^_}}])\{{(?=[A-Za-z]{{1,6}}\}})){_NESTED}")
_UPRIGHT_PART = rf"((?:{_UPRIGHT}[^{{}}]*\}}|\^\s*(?:\{{-?[0-9]\}}|-?[0-9])|\\[,;: ]|\\cdot(?![A-Za-z])|[~\s])++)"
_FRACTION = re.compile(
    rf"(?<=[0-9}})])((?:\\[,;: ]|~|\s)*+)\\[dt]?frac\s*\{{{_UPRIGHT_PART}\}}\s*\{{{_UPRIGHT_PART}\}}"
)
_VALUE_BEFORE = re.compile(r"[0-9})](?:\s|\\[,;:! ]|~|\\cdot(?![A-Za-z])|\\times?(?![A-Za-z]))*$")
_DEGREES_BEFORE = re.compile(r"\\(?:circ|degree)\s*\}?\s*$")
_JOINS = re.compile(r"(?:[\s~/*()-]|\\[,;:! ]|\\cdot(?![A-Za-z])|\^\s*\{?\s*-?[0-9]\s*\}?)*")
_PREFIXED = rf"(?:(?:{_UPRIGHT}[~\s]*|\{{~?)?\s*"
_ENDS = r"\s*\}?(?=\s*(?:$|[.,;)/}\]^]|\\cdot|\\[,;]|\\text|\\mathrm))"
_BEHIND = r"(?<=[0-9})])(?:\s|~|\\[,;:! ])*+"
_MICRO = re.compile(rf"{_BEHIND}(?:\\mu(?![A-Za-z])|\u03bc)\s*{_PREFIXED}(?P<unit>[msglLFC])){_ENDS}")
_OHM = re.compile(
    rf"{_BEHIND}(?:(?:{_UPRIGHT}\s*)?(?P<prefix>[kM])\s*\}}?\s*)?(?:{_UPRIGHT}[~\s]*)?(?:\\Omega(?![A-Za-z])|\u03a9){_ENDS}"
)
_ANGSTROM = re.compile(rf"{_BEHIND}(?:{_UPRIGHT}[~\s]*)?(?:\\AA(?![A-Za-z])|\u00c5|\\mathring\s*\{{\s*A\s*\}})\s*\}}?")
_SPECIAL = ("\\mu", "\u03bc", "\\Omega", "\u03a9", "\\AA", "\u00c5", "\\mathring")
_MICRO_NAMES = {"m": "meter", "s": "second", "g": "gram", "l": "liter", "L": "liter", "F": "farad", "C": "coulomb"}
_OHM_PREFIXES = {"k": "kilo", "M": "mega"}


def split_unit(text: str) -> tuple[str, str | None]:
    """Split a text into its value and its unit in one spelling ("cm", "km h^-1", "m^2"), or None if it has no unit."""
    if len(text) > MAX_CHARS:
        return text, None
    if money := _MONEY.fullmatch(text):
        return money["sign"] + money["value"], _CURRENCIES[money["currency"]]
    if degrees := _DEGREES.fullmatch(text):
        return degrees["value"], {"c": "celsius", "f": "fahrenheit"}.get((degrees["scale"] or "")[:1].lower(), "degree")
    if (other := _OTHER_SCRIPT.fullmatch(text)) and not _SCALES.search(other["name"]):
        return other["value"], _CURRENCIES.get(other["name"], other["name"])
    text = _ONE_OVER.sub(" /", join_unit_names(text))
    tail = TAIL.search(text)
    tokens = (tokenize(text, tail.start()) if tail else None) or []
    for first in range(max(0, len(tokens) - MAX_TOKENS), len(tokens)):
        unit = read_units(tokens[first:])
        value = text[: tokens[first].start]
        if unit is not None and _is_apart(value, unit):
            return value.strip(), unit.label
    return text, None


def _is_apart(before: str, unit: UnitExpression) -> bool:
    """Return True if the text after a value is a unit, not a product of variables or the end of a word."""
    value = before.rstrip()
    if not re.search(r"[0-9a-zA-Z)}%.\]]$", value):
        return False
    gap = len(value) < len(before)
    if unit.begins == "word":
        return (gap or not value[-1].isalpha()) and (unit.long or _NUMERIC.search(value) is not None)
    number = parse_plain_number(value) is not None
    if unit.label == _TORQUE:
        return gap and number
    if unit.begins == "over":
        return number and (unit.words or _MEASURED.search(value) is not None)
    product = unit.plain or unit.divides or unit.words or _MEASURED.search(value) is not None
    return gap and number and product


def convert_upright_units(text: str) -> str:
    r"""Return LaTeX with upright letters after a value replaced by unit names: 5 meter for `5 \mathrm{~m}`."""
    if any(special in text for special in _SPECIAL):
        text = _MICRO.sub(lambda unit: f" micro{_MICRO_NAMES[unit['unit']]} ", text)
        text = _OHM.sub(lambda unit: f" {_OHM_PREFIXES.get(unit['prefix'], '')}ohm ", text)
        text = _ANGSTROM.sub(" angstrom ", text)
    if "\\" not in text and "{" not in text:
        return text
    text = _FRACTION.sub(r"\1 \2/(\3)", text)
    parts, end, last_unit = [], 0, -1
    for group in _GROUP.finditer(text):
        before = text[end : group.start()]
        continues = last_unit == end and _JOINS.fullmatch(before)
        sure = group.group().startswith(("\\", "{~")) or find_unit(group[1]) is not None
        behind = continues or (sure and _VALUE_BEFORE.search(before))
        words = _convert_to_words(group, before) if behind and not _DEGREES_BEFORE.search(before) else None
        parts += [before, group.group() if words is None else f" {words} "]
        end = group.end()
        last_unit = end if words is not None else last_unit
    return "".join([*parts, text[end:]])


def _convert_to_words(group: re.Match[str], before: str) -> str | None:
    """Return the units of an upright text as words, or None if it contains anything else."""
    content = _SPACE.sub(" ", group[1])
    tokens = tokenize(content) or []
    if _can_be_variable({token.text for token in tokens}, group, before):
        return None
    words = [find_unit_word(token.text) or token.text if token.kind == "word" else token.text for token in tokens]
    spelled = " ".join(
        f"^{{{word}}}" if token.kind == "power" else word for token, word in zip(tokens, words, strict=True)
    )
    return spelled if read_units(tokenize(spelled) or []) else None


def _can_be_variable(names: set[str], group: re.Match[str], before: str) -> bool:
    r"""Return True if a letter may mean a variable, thousands or millions: 2\mathrm{A}, 12\text{ K}, 12\text{ M}."""
    letters = names.intersection(UPRIGHT_ONLY)
    apart = group[1][:1] in (" ", "~") or _GAP_BEFORE.search(before) is not None
    thousands = "K" in letters and group.group().startswith("\\text")
    millions = "M" in letters and _SCIENTIFIC.search(before) is None
    return bool(letters) and (not apart or thousands or millions)
