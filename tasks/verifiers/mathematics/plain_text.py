"""Search for numbers and LaTeX among words, where nothing marks them as mathematics."""

from __future__ import annotations

import re

from tasks.verifiers.mathematics.units import is_unit

_DIGITS = r"(?:[0-9]{1,3}(?:(?:,(?:\\! ?)?|\{,\}|\\[,;: ])[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(
    rf"(?:(?<![\w)])-\$?)?(?:{_DIGITS}(?:\.[0-9]+)?|(?<!\w)\.[0-9]+)(?:[eE][-+]?[0-9]+)?"
    r"(?:/[0-9]+|(?::[0-9]+)+)?(?:\s?(?:\\?%|[AaPp]\.?[Mm]\b))?"
)
_PROSE = re.compile(
    r"(?<![\\A-Za-z])(?!(?:and|or|pi|sqrt|sin|cos|tan|log|ln|exp)\b)[A-Za-z]{2,}(?![A-Za-z{])"
    r"(?:\s?\^\{?[23]\}?)?"
)
# Words within these are parts of the mathematics around them.
_NO_PROSE = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|bb)|mbox|operatorname\*?|begin|end)\s*\{[^{}]*\}"
)
_STOP = re.compile(r"[.!?;:](?=[\s*]|$)")
_LATEX = re.compile(r"\\(?!(?:text|mathrm|mbox)(?![A-Za-z]))[A-Za-z]{2,}|[0-9A-Za-z)}]\s*\^")
_VALUE = re.compile(r"[0-9]|\\[A-Za-z]{2,}")
_LEADING_WORD = re.compile(r"\s*(?:[aAI]\s|(?:and|or)\b)\s*")
_WORD = re.compile(r"-?[^\W\d_]+")
_OR = re.compile(r"\s*,?\s*(?:or|and)\s+")


def stands_alone(number: re.Match[str]) -> bool:
    """Return True if digits are a number, and no part of a word such as H2O, x2y, step2, x_2, 2nd, 2-digit.

    A unit may follow: 5cm.
    """
    text, start, end = number.string, number.start(), number.end()
    before = text[max(0, start - 2) : start]
    if before[-1:].isalpha() or before[-1:] in ("_", "{") or (before[-1:] == "." and before[:1].isalnum()):
        return False
    word = _WORD.match(text, end)
    return word is None or is_unit(word.group())


def last_number(text: str) -> str | None:
    """Return the last number of a text, with its sign, its fraction bar or its percent sign."""
    numbers = [number.group() for number in _NUMBER.finditer(text) if stands_alone(number)]
    return numbers[-1] if numbers else None


def last_expression(text: str) -> str | None:
    """Return the LaTeX that holds the last value of a text; None where that value is a mere number."""
    for line in reversed(text.split("\n")):
        values = [part for part in _between_words(line) if _VALUE.search(part)]
        if values:
            return _expression(values[-1])
    return None


def first_value(statement: str) -> str | None:
    """Return the first LaTeX or number of a statement with words in it; None where it has no words, or nothing else."""
    parts = _between_words(statement)
    if len(parts) == 1:
        return None
    for part in parts:
        if expression := _expression(part):
            return expression
        if any(map(stands_alone, _NUMBER.finditer(part))):
            break
    number = next(filter(stands_alone, _NUMBER.finditer(statement)), None)
    return ", ".join(found.group() for found in alternatives(number, _NUMBER)) if number else None


def alternatives(value: re.Match[str], pattern: re.Pattern[str]) -> list[re.Match[str]]:
    """Return the answers that an "or" or "and" joins: `value`, and matches of `pattern` that follow it directly."""
    values = [value]
    while (link := _OR.match(value.string, value.end())) and (following := pattern.match(value.string, link.end())):
        value = following
        values.append(value)
    return values


def _between_words(text: str) -> list[str]:
    """Return the parts of a text between its words; one part where it has none."""
    hidden = _NO_PROSE.sub(lambda command: "\0" * len(command.group()), text)
    cuts = [word.span() for word in _PROSE.finditer(hidden)]
    if not cuts:
        return [text]
    cuts = sorted([*cuts, *(stop.span() for stop in _STOP.finditer(hidden))])
    edges = [0, *(edge for cut in cuts for edge in cut), len(text)]
    return [text[start:end] for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _expression(part: str) -> str | None:
    """Return the LaTeX of a part without words, behind its last equals sign; None where it holds none."""
    _, _, result = _LEADING_WORD.sub("", part, count=1).rpartition("=")
    result = result.strip(" \t\r,.;:*`")
    if result.count("(") != result.count(")"):
        result = result.rstrip(" (").lstrip(" )")
    return result if _LATEX.search(result) and result.count("{") == result.count("}") else None
