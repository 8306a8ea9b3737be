r"""Finds a value in text: a number, a formula or an expression among words.

A line is split at its words and full stops. The text between two of them is read completely or not at all: no part of
2x+1, (3, 4), 3 1/2, sqrt(5) or 10 000 is a separate number. A formula counts as one character of the text around it:
($3$, $4$).

    So the point ($3$, $4$) lies 5 cm off.     words   value: ($3$, $4$)   word   value: 5   words
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from tasks.verifiers.mathematics.number_words import CARDINALS, COINS, PARTS, SCALES
from tasks.verifiers.mathematics.unit_names import LONG_NAMES, SHORT_NAMES, is_unit
from tasks.verifiers.mathematics.units import OTHER_SCALES

CHANGES_VALUE = (
    r"\b(?:hundred|thousand|million|billion|trillion|dozen|half|halves|thirds?|quarters?|squared|cubed|times|plus|minus"
    r"|over|factorial|root|mod|than|least|most|base|negative|january|february|march|april|may|june|july|august"
    r"|september|october|november|december)s?\b"
)
"""Pattern of words that change the value of a number next to them."""
_PARTS = "|".join(part for part in PARTS if part not in COINS)
CHANGES_VALUE_BEFORE = (
    rf"(?:(?:{'|'.join(SCALES)})s?|(?:{_PARTS})s|score|gross|modulo|remainder)\b"
    rf"|below\s+(?:zero|freezing|sea|ground)\b|point\s+(?:{'|'.join(CARDINALS)})\b"
)
"""Pattern of words that change the value of the number before them."""

# No alternative may match across another opening of itself: the search would be quadratic in the number of openings.
FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:[^\\]|\\[^\[\]])+)\\\]|\\\(((?:[^\\]|\\[^()])+)\\\)"
    r"|(?<![\\$])\$(?:(?=\S)((?:[^$\n\\]|\\[^\n])+?)(?<=\S)|[ ]+([^$\n\\]+)[ ]|([^$\n\\]*\\[^\n](?:[^$\n\\]|\\[^\n])*))"
    r"\$(?![0-9$])"
)
"""Pattern of a formula in dollar signs or LaTeX brackets; a dollar sign before an amount does not start one."""
_FIRST, _LAST = "\ue000", "\uf8ff"
_MARK = re.compile(f"[{_FIRST}-{_LAST}]")

_PROSE = re.compile(
    r"(?<![\\A-Za-z0-9])(?!(?:and|or|pi|sqrt|sin|cos|tan|log|ln|exp|percent)\b)"
    rf"(?!(?i:{CHANGES_VALUE}))(?!(?<=[0-9] )[AaPp][Mm]\b)(?!(?<=[0-9{_FIRST}-{_LAST}] )(?i:{CHANGES_VALUE_BEFORE}))"
    r"(?:[A-Za-z]{2,}(?:['\u2019][A-Za-z]+)?|[A-Za-z]['\u2019][a-z]+)(?![A-Za-z{0-9(])(?:-(?=[0-9]))?"
    r"(?:\s?\^\{?[23]\}?|[\u00b2\u00b3])?"
    r"|(?<![\\A-Za-z0-9])[A-Za-z]+[0-9][\w.]*|(?<![0-9])[0-9]++(?:(?:st|nd|rd|th)\b|-[A-Za-z]{2,})"  # H2O, v1.5; 2nd
    rf"|(?<=[0-9])(?:(?:{LONG_NAMES})(?![A-Za-z])|[{SHORT_NAMES}](?=[.,;:!?]?\s+[A-Za-z]{{2}}|[.,;:!?]?\s*$))"
    r"(?:\^\{?[23]\}?|[\u00b2\u00b3])?|(?<=[0-9])m(?:\^\{?[23]\}?|[\u00b2\u00b3])"
    rf"|(?<![A-Za-z])(?:i\.e|e\.g)\b\.?|(?!{OTHER_SCALES})[^\W\d_A-Za-z\u0370-\u03ff][^\x00-\x7f\s\u00b0-\u00be\u2150-\u22ff\ue000-\uf8ff]*"
)
# Words within these commands belong to the mathematics around them.
_NO_PROSE = re.compile(
    r"\\(?:text(?:bf|it|rm|normal)?|math(?:rm|bf|it|bb)|mbox|operatorname\*?|begin|end)\s*\{[^{}]*\}"
)
_STOP = re.compile(r"(?<!\\)[.!?;:](?=[\s*]|$)")
_NUMBERED = re.compile(r"\s*(?:[0-9]{1,2}[.)]|[-*+\u2022])\s+(?=\S)")
_VALUE = re.compile(
    rf"[0-9{_FIRST}-{_LAST}\u00bc-\u00be\u2150-\u215e\u221a\u221e\u03c0]|\\[A-Za-z]{{2,}}|\b(?:pi|sqrt)\b"
    r"|[A-Za-z)]\s*[-+*/^=]\s*[A-Za-z(]"
)
_LEAD = re.compile(r"(?:\s|[aAI]\s(?!\s*[-+*/^=])|(?:and|or)\b|\(?mod\b|[=,;:*`#\"\u201c\u2019']|\$(?=[^$]*$))*+")
_TRAILING_WORD = re.compile(r"(?<=\s)[aAI]$")
_TRAILING = " \t\r,.;:!?*`\"\u201d\u2019'(+=-"
_NUMBER = re.compile(r"-?[0-9.,]+(?:/[0-9]+)?(?::[0-9]+)*\s?%?")
_CUT_OFF = re.compile(r"\b(?:and|or)$")
_SEVERAL = re.compile(r"[,;]|\b(?:and|or)\b")
_WORD = re.compile(r"-?[^\W\d_\u00b2\u00b3\u00b9\u2070-\u2079]+")


class Value(NamedTuple):
    """A value in text.

    Attributes:
        text: the value; a formula has no dollar signs.
        form: "formula", "number" or "expression".
    """

    text: str
    form: str


class _Run(NamedTuple):
    text: str
    after: str  # the word before it


def find_last_value(text: str) -> Value | None:
    """Return the last value of a text, or None if there is none or it cannot be read completely."""
    marked, formulas = _replace_formulas(text)
    for line in reversed(marked.split("\n")):
        values = [run for run in _find_values(line) if run.after.lower() != "not"]
        if values:
            return _parse_value(values[-1].text, formulas)
    return None


def find_first_value(statement: str) -> Value | None:
    """Return the first value of a statement, or None if there is none."""
    marked, formulas = _replace_formulas(statement)
    values = _find_values(marked)
    return _parse_value(values[0].text, formulas) if values else None


def extract_content(formula: re.Match[str]) -> str:
    """Return the content of a match of `FORMULA`."""
    return next(group for group in formula.groups() if group is not None)


def is_standalone(number: re.Match[str]) -> bool:
    """Return True if digits are a number and not part of a word such as H2O, x2y, step2, x_2, 2nd, 2-digit.

    A unit may follow: 5cm.
    """
    text, start, end = number.string, number.start(), number.end()
    before = text[max(0, start - 2) : start]
    if before[-1:].isalpha() or before[-1:] in ("_", "{") or (before[-1:] == "." and before[:1].isalnum()):
        return False
    word = _WORD.match(text, end)
    return word is None or is_unit(word.group())


def _replace_formulas(text: str) -> tuple[str, list[str]]:
    """Return the text with each formula replaced by one character, and the formulas; the first ones may be dropped."""
    text = _MARK.sub(" ", text)
    formulas = list(FORMULA.finditer(text))[-(ord(_LAST) - ord(_FIRST)) :]
    parts, end = [], formulas[0].start() if formulas else 0
    parts.append(text[:end])
    for number, formula in enumerate(formulas):
        parts += [text[end : formula.start()], chr(ord(_FIRST) + number)]
        end = formula.end()
    return "".join([*parts, text[end:]]), [extract_content(formula).strip() for formula in formulas]


def _split_runs(line: str) -> Iterator[_Run]:
    """Split a line at words of prose and full stops; yield each part between them, with the word before it."""
    start = numbered.end() if (numbered := _NUMBERED.match(line)) else 0
    hidden = _NO_PROSE.sub(lambda command: "\0" * len(command.group()), line)
    cuts = sorted(cut.span() for pattern in (_PROSE, _STOP) for cut in pattern.finditer(hidden, start))
    word = ""
    for cut in [*cuts, (len(line), len(line))]:
        if cut[0] >= start:
            yield _Run(line[start : cut[0]], word)
        start, word = max(start, cut[1]), line[slice(*cut)]


def _find_values(line: str) -> list[_Run]:
    """Return the parts of a line that contain a value; parts joined by a unit are one: 6 feet 2 inches."""
    values: list[_Run] = []
    joins = False
    for run in _split_runs(line):
        holds = _VALUE.search(run.text) is not None
        if holds and joins and is_unit(run.after) and not run.text.lstrip().startswith(","):
            values[-1] = _Run(f"{values[-1].text}{run.after}{run.text}", values[-1].after)
        elif holds:
            values.append(run)
        joins = holds
    return values


def _parse_value(run: str, formulas: list[str]) -> Value | None:
    """Return a part as a value, from its last equals sign and without surrounding marks, or None if it is cut off."""
    text = _LEAD.sub("", run, count=1).rstrip(_TRAILING)
    text = _TRAILING_WORD.sub("", text).rstrip(_TRAILING)
    opened, closed = (sum(map(text.count, brackets)) for brackets in ("([", ")]"))
    if opened < closed and text.endswith(")"):
        text = text[:-1].rstrip()
    elif opened > closed and text.startswith("("):
        text = text[1:].lstrip()
    if len(text) == 1 and _MARK.match(text):
        return Value(formulas[ord(text) - ord(_FIRST)], "formula")
    text = _MARK.sub(lambda mark: f" {formulas[ord(mark.group()) - ord(_FIRST)]} ", text).strip()
    if not _SEVERAL.search(text):
        text = text.rpartition("=")[2].strip()
    if not text or text.count("{") != text.count("}") or _CUT_OFF.search(text):
        return None
    return Value(text, "number" if _NUMBER.fullmatch(text) else "expression")
