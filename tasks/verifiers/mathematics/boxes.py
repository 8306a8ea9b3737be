r"""Extracts the answer from the boxes of a response: the last box, with earlier boxes of the same answer.

`$x = \boxed{1}$ and $x = \boxed{-3}$` is one answer with two members, "x=1, x=-3". Boxes belong together if there are
only commas, "and", "or" and names such as "x =" between them. A box in another sentence, or separated by other words
("first \boxed{1}, then \boxed{2}"), is a draft and is ignored.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from tasks.verifiers.mathematics.plain_notation import partners_of

MAX_GAP_CHARS = 60
"""Maximum characters between two boxes of one answer."""

_BOX = re.compile(r"\\(?:boxed|fbox)(?![A-Za-z])\s*")
_UNBRACED = re.compile(r"[^\s{}$\\]+")
_NAME = r"(?:[A-Za-z]|\\[a-z]+)(?:_(?:[A-Za-z0-9]|\{[A-Za-z0-9]+\}))?"
_NAMED = re.compile(rf"(?<![\\A-Za-z0-9^_+*/-])({_NAME})\s*=\s*(?:\$\s*)?$")
_NOTHING = r"(?:[ \t$*]|\n(?!\s*\n)|\\[()\[\],;:! ]|\\q?quad(?![A-Za-z]))*"
_AND = r"(?:\band\b|\bor\b|\\text\s*\{[ ,]*(?:and|or)[ ,]*\})"
_JOINT = re.compile(rf"{_NOTHING}(?:[,;]{_NOTHING}{_AND}?|{_AND}){_NOTHING}(?:{_NAME}{_NOTHING}={_NOTHING})?")


@dataclass(frozen=True)
class _Box:
    """A complete, non-empty box.

    Attributes:
        start, end: offsets of the box in the text.
        inside: content of the box.
        name: the name before the box, such as "x=", or the empty string.
    """

    start: int
    end: int
    inside: str
    name: str


def find_last_boxed(text: str) -> str | None:
    """Return the content of the last complete, non-empty box, or None if there is none.

    The contents of earlier boxes of the same answer are joined with it.
    """
    openings = list(_BOX.finditer(text))
    partners = partners_of(text) if openings else {}
    answer: list[_Box] = []
    for opening in reversed(openings):
        box = _parse_box(text, opening, partners)
        if answer and (box is None or not _is_joined(text, box, answer[-1])):
            break
        if box is not None:
            answer.append(box)
    if len({"".join(box.inside.split()) for box in answer}) <= 1:
        return answer[0].inside if answer else None
    return ", ".join(box.name + box.inside.strip() for box in reversed(answer))


def _parse_box(text: str, opening: re.Match[str], partners: dict[int, int]) -> _Box | None:
    start = opening.end()
    if text[start : start + 1] == "{":
        end = partners.get(start, start)
        inside = text[start + 1 : end]
    else:
        unbraced = _UNBRACED.match(text, start)
        inside = unbraced.group().rstrip(".,;:!?)") if unbraced else ""
        end = start + len(inside) - 1
    if not inside.strip():
        return None
    named = _NAMED.search(text, max(0, opening.start() - MAX_GAP_CHARS), opening.start())
    return _Box(opening.start(), end + 1, inside, f"{named[1]}=" if named else "")


def _is_joined(text: str, box: _Box, following: _Box) -> bool:
    gap = text[box.end : following.start]  # also empty if one box contains the other
    return len(gap) <= MAX_GAP_CHARS and _JOINT.fullmatch(gap) is not None
