r"""Extraction of the final answer from a response.

The answer is the first of these that the response holds; later forms are then not looked at:

1. boxed       the last complete `\boxed{...}` or `\fbox{...}`, braces nested to any depth; `\boxed 7`
2. tag         the last `<answer>...</answer>`
3. hashes      what follows the last `####` on its line (GSM8K)
4. phrase      what follows the last "answer is" or "answer:" ("the final answer is 12 apples."), up to the end of its
               sentence; so also Minerva's "Final Answer: The final answer is $...$. I hope it is correct."
               (Lewkowycz et al. 2022, https://arxiv.org/abs/2206.14858)
5. formula     the last `$$..$$`, `$..$`, `\[..\]` or `\(..\)`; a dollar sign before an amount opens no formula
6. expression  LaTeX without any of these around it, where nothing that could be an answer follows: `\frac{10}{9}`
7. number      the last number in plain text: 7, -7, 1,234.5, 3/4, 50%; no digit of a word, such as H2O or 2nd

A response states one answer: the last box counts, as in the graders of MATH, and boxes before it are read only where
they are one answer with it (`boxes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from tasks.verifiers.mathematics.boxes import last_boxed
from tasks.verifiers.mathematics.plain_text import alternatives, first_value, last_expression, last_number
from tasks.verifiers.responses import strip_thinking

MAX_CHARS = 20_000
"""Characters of a response that are read, from its end: answers come last, and long texts cost time."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_HASHES = re.compile(r"####([^\n]+)")
_PHRASE = re.compile(r"\banswer\**\s{0,3}(?:is\b|:)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"(?<!\\)[.!?;](?=\s|$)|\n")
# No form may run over another opening of itself: the search would be quadratic in the number of openings.
_FORMULA = re.compile(
    r"\$\$([^$]+)\$\$|\\\[((?:[^\\]|\\[^\[\]])+)\\\]|\\\(((?:[^\\]|\\[^()])+)\\\)"
    r"|(?<![\\$])\$(?:(?=\S)((?:[^$\n\\]|\\[^\n])+?)(?<=\S)|[ ]+([^$\n\\]+)[ ]|([^$\n\\]*\\[^\n](?:[^$\n\\]|\\[^\n])*))"
    r"\$(?![0-9$])"
)
_WORDY = re.compile(r"\s*[A-Za-z]{2,}\s")
_NEGATION = re.compile(r"\s*not\b")
_VERB = re.compile(r"\b(?:is|are|equals)\b")
_SOMETHING = re.compile(r"[0-9$]|\\[(\[]")


@dataclass(frozen=True)
class Answer:
    """The final answer of a response: its text, unchanged, and the name of the form in which it was stated."""

    form: str
    text: str


def extract_answer(response: str, *, whole: bool = False) -> Answer | None:
    """Return the final answer by the order of the module's docstring, or None where there is none.

    In a tag, after hashes and after a phrase, a formula or a number is picked out of the words around it; `whole`
    leaves those words.
    """
    text = readable_part(response)
    for form, find in _FORMS.items():
        candidate = find(text)
        if candidate and form in _STATEMENTS:
            candidate = _unwrapped(candidate) if whole else _stated(candidate)
        if candidate and candidate.strip():
            return Answer(form, candidate.strip())
    return None


def readable_part(response: str) -> str:
    """Return the part of a response that is read: its end, without the thinking part."""
    return strip_thinking(response)[-MAX_CHARS:].replace("\u2212", "-")


def _last_tag(text: str) -> str | None:
    content, start = None, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            content, start = text[start : tag.start()].strip() or content, None
    return content


def _last_hashes(text: str) -> str | None:
    contents = _HASHES.findall(text)
    return contents[-1] if contents else None


def _last_phrase(text: str) -> str | None:
    ends = [phrase.end() for phrase in _PHRASE.finditer(text)]
    if not ends:
        return None
    rest = text[ends[-1] :].lstrip(" \t\r\n:*")
    formula = _FORMULA.match(rest)
    stop = _SENTENCE_END.search(rest, formula.end() if formula else 0)
    return rest[: stop.start()] if stop else rest


def _last_formula(text: str) -> str | None:
    formulas = [_inside(formula) for formula in _FORMULA.finditer(text)]
    return formulas[-1] if formulas else None


_FORMS: dict[str, Callable[[str], str | None]] = {
    "boxed": last_boxed,
    "tag": _last_tag,
    "hashes": _last_hashes,
    "phrase": _last_phrase,
    "formula": _last_formula,
    "expression": last_expression,
    "number": last_number,
}
_STATEMENTS = ("tag", "hashes", "phrase")


def _stated(text: str) -> str:
    """Return the answer within a short statement of it: its first formula, or its first number if words surround it.

    With it goes what "or" and "and" add to it, for "5 or 6" is not 5. Where the statement opens with words, the answer
    follows the verb: "The largest $n$ is 34."
    """
    if _WORDY.match(text) and (verb := _VERB.search(text)) and _SOMETHING.search(text, verb.end()):
        text = text[verb.end() :]
    if _NEGATION.match(text):
        return text
    if formula := _FORMULA.search(text):
        return ", ".join(map(_inside, alternatives(formula, _FORMULA)))
    _, _, result = text.rpartition("=")
    return first_value(result) or result


def _unwrapped(text: str) -> str:
    formula = _FORMULA.fullmatch(text.strip())
    return _inside(formula) if formula else text


def _inside(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None)
