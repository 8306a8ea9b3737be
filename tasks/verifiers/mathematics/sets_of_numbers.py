r"""Normalises sets of numbers in words and symbols, on both sides of a comparison.

    no solution, the empty set                             \emptyset
    all real numbers                                       \mathbb{R}
    ]2, 5]                                                 (2, 5]
    \{x \mid x > 5\}, \{x : x > 5\}                        x > 5
    y \in (4, \infty), compared with y > 4                 (4, \infty)
    x = 2k\pi, k \in \mathbb{Z}, compared with x = 2k\pi   x = 2k\pi

A qualifier on only one side is dropped if it states the usual meaning: one of the letters i to n is any integer, or
another letter is any real number. If both sides have a qualifier, the two must agree.
"""

from __future__ import annotations

import re
from typing import NamedTuple

_EMPTY = re.compile(
    r"(?:the )?empty set|(?:there (?:is|are|exists?) |it has |has )?no (?:real |such |possible )?"
    r"(?:solutions?|roots?|real numbers?)(?: exists?)?",
    re.IGNORECASE,
)
_ALL = re.compile(
    r"(?:[a-z](?: is| can be)? )?(?:the set of )?(?:all|any|every) (?:the )?(real|integer)s?(?: numbers?)?(?: values?)?"
    r"(?: of [a-z]| [a-z])?",
    re.IGNORECASE,
)
_SETS = {"real": r"\mathbb{R}", "integer": r"\mathbb{Z}"}
_SQUARE = re.compile(r"[\[\]]")
_INTERVAL = re.compile(r"(?P<opens>[\[\](])(?P<ends>[^\[\]()]*[,;][^\[\]()]*)(?P<closes>[\[\])])")

_LETTER = r"(?:[A-Za-z]|\\(?:alpha|beta|gamma|theta|lambda|mu|omega|phi))"
_BUILDER = re.compile(
    rf"\\\{{\s*(?P<name>{_LETTER})\s*(?:\\in\s*(?P<domain>\\mathbb\{{[A-Z]\}}[^|:]*?)\s*)?(?:\||:)\s*(?P<condition>.+)\\\}}",
    re.DOTALL,
)
_MEMBER = re.compile(
    rf"(?P<name>{_LETTER})\s*\\in(?![A-Za-z])\s*(?P<set>[^,]*[\[(].*|\\\{{.*|\\mathbb.*|\\emptyset)", re.DOTALL
)
_RELATION = re.compile(r"[<>=]|\\(?:l|g|n)e?q?(?![A-Za-z])|\\(?:in|neq)(?![A-Za-z])")
_COMMAND = re.compile(r"\\mathbb\s*\{[A-Z]\}|\\[A-Za-z]+|\b(?:or|and)\b")
_KIND = r"(?P<{0}>integers?|whole numbers?|real numbers?|reals?|real constants?|constants?)"
_BEHIND = r"(?P<main>.*?[^\s,;(])(?:\s*[,;]\s*\(?|\s*\(|\s+)\s*(?:(?:where|with|for|and)\s+)?"
_ANY = r"(?:(?:any|all|every|each|some|an?|arbitrary)\s+|\\forall\s*)*"
_QUALIFIERS = (
    re.compile(
        rf"{_BEHIND}{_ANY}(?P<name>{_LETTER})\s*\\in\s*(?P<domain>\\mathbb\{{[A-Z]\}}(?:\s*[\^_]\s*\{{?[^\s{{}}]\}}?)?|[ZRNQ])\s*\)?",
        re.DOTALL,
    ),
    re.compile(rf"{_BEHIND}{_ANY}{_KIND.format('domain')}\s+(?P<name>{_LETTER})\s*\)?", re.DOTALL),
    re.compile(rf"{_BEHIND}(?:all|any|every|each)\s+(?P<name>{_LETTER})(?P<domain>)\s*\)?", re.DOTALL),
    re.compile(rf"{_BEHIND}(?P<name>{_LETTER})\s+(?:is|are|being)?\s*{_ANY}{_KIND.format('domain')}\s*\)?", re.DOTALL),
)
_MIGHT_QUALIFY = re.compile(r"\\in(?![A-Za-z])|\b(?:integer|whole|real|constant|all|any|every|each)")
_SAYS_MORE = re.compile(rf"{_MIGHT_QUALIFY.pattern}|\\\{{")
MAX_CHARS = 400
"""Maximum characters of a text that is searched for qualifiers."""


class _Qualified(NamedTuple):
    """A text without its qualifier, with the qualifier's letter (`name`) and set (`domain`): "Z", "R", ..."""

    main: str
    name: str
    domain: str


def convert_to_symbols(text: str) -> str:
    """Return the symbol of a set named in words, or an interval without reversed brackets, or else the text."""
    if text[:1].isalpha() and (named := _ALL.fullmatch(text)):
        return _SETS[named[1].lower()]
    if text[:1].isalpha() and _EMPTY.fullmatch(text):
        return r"\emptyset"
    return _replace_reversed_brackets(text) if "]" in text or "[" in text else text


def match_notation(ours: str, theirs: str) -> tuple[str, str]:
    """Return both sides in the same notation: without qualifiers, memberships and set builders of only one side."""
    if not (_SAYS_MORE.search(ours) or _SAYS_MORE.search(theirs)):
        return ours, theirs
    return _remove_builders(*_remove_memberships(*_remove_qualifiers(ours, theirs)))


def _remove_memberships(ours: str, theirs: str) -> tuple[str, str]:
    r"""Return the set of a membership such as y \in (4, \infty), if the other side is about the same letter only."""
    mine, other = _MEMBER.fullmatch(ours), _MEMBER.fullmatch(theirs)
    if mine and other:
        return (mine["set"], other["set"]) if mine["name"] == other["name"] else (ours, theirs)
    if mine and _is_relation(theirs, mine["name"]):
        return mine["set"], theirs
    if other and _is_relation(ours, other["name"]):
        return ours, other["set"]
    return ours, theirs


def _replace_reversed_brackets(text: str) -> str:
    r"""Return open ends of intervals with round brackets instead of reversed ones: ]2, 5] as (2, 5]."""
    depth = 0
    for bracket in _SQUARE.findall(text):
        depth += 1 if bracket == "[" else -1
        if depth not in (0, 1):
            break
    if depth == 0 or "\\sqrt[" in text:
        return text
    return _INTERVAL.sub(
        lambda interval: (
            ("(" if interval["opens"] == "]" else interval["opens"])
            + interval["ends"].replace(";", ",")
            + (")" if interval["closes"] == "[" else interval["closes"])
        ),
        text,
    )


def _remove_builders(ours: str, theirs: str) -> tuple[str, str]:
    """Return the conditions of set builders, if both have the same domain, or the only one is about real numbers."""
    mine, other = _parse_builder(ours), _parse_builder(theirs)
    if mine and other:
        if mine.domain != other.domain:
            return ours, theirs
        return _replace_letter(mine.main, mine.name, other.name), other.main
    if mine and mine.domain == "R":
        return mine.main, theirs
    if other and other.domain == "R":
        return ours, other.main
    return ours, theirs


def _parse_builder(text: str) -> _Qualified | None:
    builder = _BUILDER.fullmatch(text) if text.startswith("\\{") else None
    if builder is None or not _RELATION.search(builder["condition"]):
        return None
    condition, domain = builder["condition"].strip(), _parse_domain(builder["domain"] or r"\mathbb{R}")
    inner = _split_qualifier(condition)
    if inner and inner.name == builder["name"]:
        condition, domain = inner.main, inner.domain if domain == "R" else domain
    return _Qualified(condition, builder["name"], domain)


def _remove_qualifiers(ours: str, theirs: str) -> tuple[str, str]:
    mine, other = _split_qualifier(ours), _split_qualifier(theirs)
    if mine and other and mine.domain == other.domain:
        return _replace_letter(mine.main, mine.name, other.name), other.main
    if mine and not other and _is_usual(mine) and mine.name in _collect_letters(theirs):
        return mine.main, theirs
    if other and not mine and _is_usual(other) and other.name in _collect_letters(ours):
        return ours, other.main
    return ours, theirs


def _split_qualifier(text: str) -> _Qualified | None:
    """Return a text and the qualifier at its end, for a letter in the text, or None if there is none."""
    if len(text) > MAX_CHARS or not _MIGHT_QUALIFY.search(text):
        return None
    for pattern in _QUALIFIERS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        main, name = match["main"], match["name"]
        if name in _collect_letters(main) and main.count("(") == main.count(")"):
            domain = _parse_domain(match["domain"]) if match["domain"] else _get_usual_domain(name)
            return _Qualified(main, name, domain)
    return None


def _parse_domain(text: str) -> str:
    """Return the letter of a set of numbers with its sign: Z, R, N, Z+."""
    if text[0].islower():
        return "Z" if text.startswith(("integer", "whole")) else "R"
    return re.sub(r"\\mathbb|[{}\s^]", "", text)


def _is_usual(qualified: _Qualified) -> bool:
    return qualified.domain == _get_usual_domain(qualified.name)


def _get_usual_domain(name: str) -> str:
    return "Z" if name in "ijklmn" else "R"


def _collect_letters(text: str) -> set[str]:
    """Return the letters of a text, each as a separate variable, as in cx."""
    greek = {command for command in _COMMAND.findall(text) if re.fullmatch(_LETTER, command)}
    return {*re.findall("[A-Za-z]", _COMMAND.sub("", text)), *greek}


def _replace_letter(text: str, name: str, other: str) -> str:
    """Return a text with one letter replaced by another, or unchanged if it already contains the other."""
    if name == other or other in _collect_letters(text):
        return text
    return re.sub(rf"(\\[A-Za-z]+|\b(?:or|and)\b)|{re.escape(name)}", lambda part: part[1] or other, text)


def _is_relation(text: str, name: str) -> bool:
    r"""Return True if a text is a relation, other than membership, with `name` as its only letter."""
    return bool(_RELATION.search(text)) and "\\in" not in _COMMAND.findall(text) and _collect_letters(text) == {name}
