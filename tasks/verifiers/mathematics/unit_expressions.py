r"""Parses products of units in any notation: m/s, m s^{-1}, meters per second, kg\cdot m^2/(s K).

expression   factor, then factors after a space, `*`, `\cdot`, `-`, or `/` and "per", which divide by the next factor
factor       ["square" or "cubic"] name [power, or "squared" or "cubed"], or an expression in brackets
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass

from tasks.verifiers.mathematics.unit_names import COMPOUND, LETTERS, find_unit

MAX_TOKENS = 16
"""Maximum number of tokens (names, powers and signs) of a product of units."""

_TOKEN = re.compile(
    r"(?P<word>[A-Za-z]+)\.?|\^\s*\{?\s*(?P<power>[-+]?\s*[0-9]{1,2})\s*\}?|(?P<digit>(?<=[A-Za-z])[23](?![0-9]))"
    r"|(?P<times>\\cdot(?![A-Za-z])|\*|-)|(?P<over>/)|(?P<open>\()|(?P<close>\))|(?P<gap>\s+)"
)
TAIL = re.compile(
    r"(?:[A-Za-z\s/*().-]|\\cdot(?![A-Za-z])|\^\s*\{?\s*[-+]?\s*[0-9]{1,2}\s*\}?|(?<=[A-Za-z])[23](?![0-9]))++$"
)
"""Pattern of the end of a text that may be a product of units, with its context."""
_SHAPES = {"square": 2, "sq": 2, "cubic": 3, "cu": 3}
_RAISED = {"squared": 2, "cubed": 3}
_TWO_WORDS = re.compile(r"\b(?:(light)[\s-]+(years?)|(arc)[\s-]+(seconds?|minutes?)|(electron)[\s-]+(volts?))\b", re.I)


@dataclass(frozen=True)
class UnitExpression:
    """A product of units.

    Attributes:
        label: the units and their exponents in one spelling, such as "km h^-1".
        words: True if a name in it is a word, so that it cannot be a product of variables.
        long: True if its first name has at least four letters.
        begins: "word", "letter" or "over" (a sign of division).
        divides: True if it has a sign of division.
        plain: True if it is a single name without a power, or a square or cubic metre.
    """

    label: str
    words: bool
    long: bool
    begins: str
    divides: bool
    plain: bool


@dataclass(frozen=True)
class Token:
    """A token of a product of units: its kind, its text, and its start offset."""

    kind: str
    text: str
    start: int


def join_unit_names(text: str) -> str:
    """Return a text with unit names of two words written as one word: lightyear, arcsecond, electronvolt."""
    return _TWO_WORDS.sub(lambda name: "".join(filter(None, name.groups())).lower(), text)


def tokenize(text: str, start: int = 0) -> list[Token] | None:
    """Return the tokens from an offset on, without spaces, or None if there is any other text."""
    tokens = []
    while start < len(text):
        match = _TOKEN.match(text, start)
        if match is None:
            return None
        if match.lastgroup != "gap":
            tokens.append(Token(match.lastgroup or "", match[match.lastgroup or 0], start))
        start = match.end()
    return tokens


def read_units(tokens: list[Token]) -> UnitExpression | None:
    """Parse tokens as one product of units; return None if they are not one."""
    if not tokens or len(tokens) > MAX_TOKENS:
        return None
    reader = _Reader(tokens)
    exponents = reader.product()
    if exponents is None or reader.at < len(tokens) or not any(exponents.values()):
        return None
    units = sorted((unit, exponent) for unit, exponent in exponents.items() if exponent)
    single = len(reader.names) == 1 and (exponents.total() == 1 or (units in ([("m", 2)], [("m", 3)])))
    return UnitExpression(
        label=" ".join(unit if exponent == 1 else f"{unit}^{exponent}" for unit, exponent in units),
        words=any(map(find_unit, reader.names)),
        long=len(reader.names[0]) > 3,
        begins="over" if reader.begins_over else "word" if find_unit(reader.names[0]) else "letter",
        divides=reader.divides,
        plain=single,
    )


class _Reader:
    """A parser of tokens, from left to right.

    Attributes:
        at: position of the next token.
        names: unit names parsed so far.
        divides: True if a division sign was parsed.
        begins_over: True if a division sign was the first token.
    """

    def __init__(self, tokens: list[Token]) -> None:
        self._tokens = tokens
        self.at = 0
        self.names: list[str] = []
        self.divides = self.begins_over = False

    def product(self) -> Counter[str] | None:
        """Parse factors up to the end or a closing bracket; return None if a factor is missing or not a unit."""
        total: Counter[str] = Counter()
        sign, wanted = 1, True
        while (token := self._next()) and token.kind != "close":
            over = token.kind == "over" or token.text == "per"
            if over or token.kind == "times":
                self.begins_over |= over and not self.names
                self.divides |= over
                if wanted and (not over or self.names or sign < 0):
                    return None
                sign, wanted, self.at = (-1 if over else 1), True, self.at + 1
                continue
            factor = self._factor(token)
            if factor is None:
                return None
            for unit, exponent in factor.items():
                total[unit] += sign * exponent
            sign, wanted = 1, False
        return None if wanted else total

    def _next(self) -> Token | None:
        return self._tokens[self.at] if self.at < len(self._tokens) else None

    def _factor(self, token: Token) -> Counter[str] | None:
        self.at += 1
        if token.kind == "open":
            inside = self.product()
            closing = self._next()
            if inside is None or closing is None:
                return None
            self.at += 1
            return _apply_power(inside, self._power())
        if token.kind != "word":
            return None
        if (shape := _SHAPES.get(token.text)) and (token := self._next() or token).kind == "word":
            self.at += 1
        unit = find_unit(token.text) or LETTERS.get(token.text)
        if unit is None:
            return None
        self.names.append(token.text)
        return _apply_power(Counter(COMPOUND.get(unit, {unit: 1})), shape or self._power())

    def _power(self) -> int:
        token = self._next()
        if token is None or not (token.kind in ("power", "digit") or token.text in _RAISED):
            return 1
        self.at += 1
        return _RAISED.get(token.text) or int(token.text.replace(" ", ""))


def _apply_power(exponents: Counter[str], power: int) -> Counter[str]:
    return Counter({unit: exponent * power for unit, exponent in exponents.items()})
