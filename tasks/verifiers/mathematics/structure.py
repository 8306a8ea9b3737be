r"""Splits an answer into the members of a collection, before they are parsed as mathematics.

(1, 2)  [1, 2)                  tuple    order matters; brackets matter if there are two members (intervals)
\{1, 2\}                        set      neither order nor repetition matters
1, 2   1 or 2   \pm 1           list     several answers: order does not matter, repetition does
anything else                   single
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import partial

_TOKEN = re.compile(r"\\.|[()\[\]{}]|[,;]|(?<![A-Za-z\\])(?:and|or)(?![A-Za-z])", re.DOTALL)
_OPENING = ("(", "[", "{", "\\{")
_CLOSING = (")", "]", "}", "\\}")
_BUILDER = re.compile(r"\||\\mid(?![A-Za-z])|:")
_EITHER_SIGN = re.compile(r"\\(pm|mp)(?![A-Za-z])\s*")


@dataclass(frozen=True)
class Shape:
    """The structure of a collection.

    Attributes:
        kind: "tuple", "set", "list" or "single".
        members: the members as text.
        brackets: the opening and closing bracket of a tuple, else empty.
    """

    kind: str
    members: tuple[str, ...]
    brackets: str = ""


def parse_shape(text: str) -> Shape:
    """Return the structure of a normalised text. Brackets around a single member are ignored."""
    separators, closing = _find_separators(text)
    if closing == len(text) and text.startswith("{"):
        return parse_shape(text[1:-1].strip())
    start = "\\{" if text.startswith("\\{") else text[:1]
    if start in ("(", "[", "\\{") and closing is not None and closing == len(text):
        return _parse_bracketed(text, start)
    members = _resolve_signs([part for part in _split_parts(text, separators) if part])
    return Shape("list" if len(members) > 1 else "single", members)


def _parse_bracketed(text: str, start: str) -> Shape:
    end = "\\}" if text.endswith("\\}") else text[-1]
    inside = text[len(start) : -len(end)].strip()
    separators, _ = _find_separators(inside)
    parts = [part for part in _split_parts(inside, separators) if part]
    if start == "\\{" and _BUILDER.search(inside):
        return Shape("single", (text,))
    if len(parts) < 2 and (start, end) in (("(", ")"), ("\\{", "\\}")):
        return parse_shape(inside) if inside else Shape("set" if start == "\\{" else "tuple", ())
    if len(parts) < 2:  # a lone [x] may be a floor
        return Shape("single", (text,))
    if start == "\\{":
        return Shape("set", tuple(dict.fromkeys(_resolve_signs(parts))))
    return Shape("tuple", tuple(parts), start + end)


def _find_separators(text: str) -> tuple[list[tuple[int, int]], int | None]:
    """Return the spans of separators outside all brackets, and the offset after the bracket closing the first one."""
    depth, separators, closing = 0, [], None
    for token in _TOKEN.finditer(text):
        if token.group() in _OPENING:
            depth += 1
        elif token.group() in _CLOSING:
            depth -= 1
            if depth == 0 and closing is None:
                closing = token.end()
        elif depth == 0 and not token.group().startswith("\\"):
            separators.append(token.span())
    return (separators if depth == 0 else []), (closing if depth == 0 else None)


def _split_parts(text: str, separators: list[tuple[int, int]]) -> list[str]:
    edges = [0, *(edge for span in separators for edge in span), len(text)]
    return [text[start:end].strip() for start, end in zip(edges[::2], edges[1::2], strict=True)]


def _resolve_signs(parts: list[str]) -> tuple[str, ...]:
    r"""Return the parts, with each part that contains `\pm` replaced by its two readings."""
    members: list[str] = []
    for part in parts:
        readings = [part]
        if _EITHER_SIGN.search(part):
            readings = [_EITHER_SIGN.sub(partial(_choose_sign, upper), part) for upper in (True, False)]
        members += [reading.removeprefix("+") for reading in readings]
    return tuple(members)


def _choose_sign(upper: bool, sign: re.Match[str]) -> str:
    return "+" if (sign[1] == "pm") == upper else "-"
