r"""`math`: is the final answer of a response mathematically equal to the reference? 1 or 0.

The answer is the first of these that the response holds; later forms are then not looked at:

1. boxed     the last complete `\boxed{...}`, braces nested to any depth
2. tag       the last `<answer>...</answer>`
3. hashes    what follows the last `####` on its line (GSM8K)
4. phrase    what follows the last "answer is" or "answer:" ("the final answer is 12 apples.")
5. formula   the last `$$..$$`, `$..$`, `\[..\]` or `\(..\)`; a dollar sign before an amount opens no formula
6. number    the last number in plain text: 7, -7, 1,234.5, 3/4, 50%

The thinking part is not read, and only the last `MAX_CHARS` characters of the rest. Equality is decided by text, then
as exact numbers, then by math-verify over SymPy, to six decimals where decimals are involved. math-verify's own time
limits rest on SIGALRM, which works in main threads only, so they are off: the pool's limit on the whole judgement holds
instead.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import lru_cache
from typing import Any

import math_verify

from tasks.verifiers.responses import strip_thinking
from tasks.verifiers.scores import GroundTruthError, Score

MAX_CHARS = 20_000
"""How much of a response is read, from its end: answers stand last, and floods cost time."""

MAX_REFERENCE_CHARS = 2_000
MAX_DIGITS = 100  # longer numbers go to SymPy, under the time limit

_EXTRACTION = (math_verify.LatexExtractionConfig(boxed_match_priority=0), math_verify.ExprExtractionConfig())

_DIGITS = r"(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)"
_NUMBER = re.compile(rf"(?:(?<![\w)])-\$?)?(?:{_DIGITS}(?:\.[0-9]+)?|\.[0-9]+)(?:/[0-9]+)?(?:\s?\\?%)?")
_PLAIN_NUMBER = re.compile(rf"([-+]?)({_DIGITS}?(?:\.[0-9]+)?)(?:/([0-9]+))?")
_TAG = re.compile(r"<answer>(.*?)</answer>", re.DOTALL | re.IGNORECASE)
_HASHES = re.compile(r"####([^\n]+)")
_PHRASE = re.compile(r"\banswer\**\s{0,3}(?:is\b|:)", re.IGNORECASE)
_SENTENCE_END = re.compile(r"[.!?;](?=\s|$)|\n")
_FORMULA = re.compile(
    r"\$\$(.+?)\$\$|\\\[(.+?)\\\]|\\\((.+?)\\\)|(?<![\\$])\$(?=\S)([^$\n]+?)(?<=\S)(?<!\\)\$(?![0-9$])", re.DOTALL
)
_PROSE = re.compile(r"(?<![\\A-Za-z])(?!(?:and|or|pi|sqrt|sin|cos|tan|log|ln|exp)\b)[A-Za-z]{2,}(?![A-Za-z{])")
_TEXT = re.compile(r"\\(?:text|textbf|mathrm|mathbf|mbox)\s*\{([^{}]*)\}")
_SPACING = re.compile(r"(?<!\\)\\(?:[!,;:()$]|(?:left|right|displaystyle)(?![A-Za-z]))")
_SPACE = re.compile(r"(?<!\\)\\ ")
_THOUSANDS = re.compile(r"(?<![0-9,.])[0-9]{1,3}(?:,[0-9]{3})+(?![0-9,])")
_BRACKETS = re.compile(r"[()\[\]{}]")
_WORDS = re.compile(r"(?!.*\b(?:pi|sqrt|sin|cos|tan|log|ln|exp|and|or)\b)(?=.*[A-Za-z]{3})[A-Za-z][A-Za-z' -]*")


@dataclass(frozen=True)
class Answer:
    """The final answer of a response as it stands there, and the form it was found in."""

    form: str
    text: str


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` unless the ground truth is a non-empty string or a non-empty list of such."""
    _references(ground_truth)


def missing_resources(ground_truth: Any) -> list[str]:
    """Nothing: this verifier needs no data."""
    return []


def judge(response: str, ground_truth: Any, messages: Any = None) -> Score:
    """1 if the response's final answer equals the reference, or one of them where there is a list; else 0."""
    references = _references(ground_truth)
    answer = extract_answer(response)
    if answer is None:
        return Score.binary(False, "no answer found")
    passed = any(equivalent(answer.text, reference) for reference in references)
    relation = "equals" if passed else "differs from"
    return Score.binary(passed, f"{answer.form}: {answer.text[:80]!r} {relation} {' | '.join(references)[:80]!r}")


def warm_up() -> None:
    """Build the grammar tables and silence the notes about the limits that are off on purpose."""
    for module in ("math_verify.parser", "math_verify.grader"):
        logging.getLogger(module).setLevel(logging.ERROR)
    assert equivalent(r"\frac{x^2}{2}", "x^2/2")


def extract_answer(response: str) -> Answer | None:
    """The final answer by the order of the module's docstring, or None where there is none."""
    text = strip_thinking(response)[-MAX_CHARS:].replace("\u2212", "-")
    for form, find in _FORMS.items():
        found = find(text)
        if found and found.strip():
            return Answer(form, found.strip())
    return None


def equivalent(answer: str, reference: str) -> bool:
    """Whether two answers are mathematically equal; the reference is the trusted side, so it is not symmetric."""
    ours, theirs = _tidy(answer), _tidy(reference)
    if not ours:
        return False
    if ours == theirs:
        return True
    left, right = _rational(ours), _rational(theirs)
    if left is not None and right is not None and (left == right or left.denominator == right.denominator == 1):
        return left == right
    if _WORDS.fullmatch(theirs):  # as algebra, words are products of letters, and anagrams are equal
        return ours.casefold() == theirs.casefold()
    return _equal_by_algebra(ours, theirs)


@lru_cache(maxsize=4096)  # the samples of a group often agree on a wrong answer too
def _equal_by_algebra(answer: str, reference: str) -> bool:
    return math_verify.verify(list(_parse(reference)), list(_parse(answer)), timeout_seconds=None)


@lru_cache(maxsize=1024)
def _parse(text: str) -> tuple[Any, ...]:
    return tuple(math_verify.parse(f"${text}$", _EXTRACTION, parsing_timeout=None))


def _references(ground_truth: Any) -> list[str]:
    references = ground_truth if isinstance(ground_truth, list) else [ground_truth]
    if not references:
        raise GroundTruthError("the list of accepted answers is empty")
    for reference in references:
        if not isinstance(reference, str) or not _tidy(reference):
            raise GroundTruthError(f"want a non-empty string or a list of such, got {ground_truth!r:.200}")
        if len(reference) > MAX_REFERENCE_CHARS:
            raise GroundTruthError(f"a reference of {len(reference)} characters; at most {MAX_REFERENCE_CHARS}")
    return references


def _last_boxed(text: str) -> str | None:
    start = len(text)
    while (start := text.rfind("\\boxed", 0, start)) >= 0:
        inside = _braced(text, start + len("\\boxed"))
        if inside and inside.strip():
            return inside
    return None


def _braced(text: str, start: int) -> str | None:
    """What stands between the brace at `start` and its partner; None where there is no such pair."""
    while text[start : start + 1].isspace():
        start += 1
    if text[start : start + 1] != "{":
        return None
    depth = 0
    for brace in re.finditer(r"\\.|[{}]", text[start:], re.DOTALL):
        depth += {"{": 1, "}": -1}.get(brace.group(), 0)
        if depth == 0 and brace.group() == "}":
            return text[start + 1 : start + brace.start()]
    return None


def _last_tag(text: str) -> str | None:
    contents = [content for content in _TAG.findall(text) if content.strip()]
    return _stated(contents[-1]) if contents else None


def _last_hashes(text: str) -> str | None:
    contents = _HASHES.findall(text)
    return _stated(contents[-1]) if contents else None


def _last_phrase(text: str) -> str | None:
    ends = [phrase.end() for phrase in _PHRASE.finditer(text)]
    if not ends:
        return None
    rest = text[ends[-1] :].lstrip(" \t\r\n:*")
    formula = _FORMULA.search(rest)
    stop = _SENTENCE_END.search(rest, formula.end() if formula and formula.start() == 0 else 0)
    return _stated(rest[: stop.start()] if stop else rest)


def _last_formula(text: str) -> str | None:
    formulas = [_inside(formula) for formula in _FORMULA.finditer(text)]
    return formulas[-1] if formulas else None


def _last_number(text: str) -> str | None:
    numbers = _NUMBER.findall(text)
    return numbers[-1] if numbers else None


_FORMS: dict[str, Callable[[str], str | None]] = {
    "boxed": _last_boxed,
    "tag": _last_tag,
    "hashes": _last_hashes,
    "phrase": _last_phrase,
    "formula": _last_formula,
    "number": _last_number,
}


def _stated(text: str) -> str:
    """The answer within a short statement of it: its first formula, or its first number if words surround it."""
    if boxed := _last_boxed(text):
        return boxed
    if formula := _FORMULA.search(text):
        return _inside(formula)
    _, _, result = text.rpartition("=")
    if _PROSE.search(_TEXT.sub("", result)) and (number := _NUMBER.search(result)):
        return number.group()
    return result


def _inside(formula: re.Match[str]) -> str:
    return next(group for group in formula.groups() if group is not None)


def _tidy(text: str) -> str:
    r"""An answer without what carries no mathematics: dollar signs, `\text`, LaTeX spacing, a closing full stop."""
    text = _TEXT.sub(r"\1", text.replace("\n", " ").replace("-$", "-"))
    text = _SPACING.sub("", _SPACE.sub(" ", text))
    if not _BRACKETS.search(text):  # inside brackets, 1,234 may be two members
        text = _THOUSANDS.sub(lambda number: number.group().replace(",", ""), text)
    return text.strip(" \t*$").rstrip(" .").strip()


def _rational(text: str) -> Fraction | None:
    """The value of a plain integer, decimal or fraction of integers; None for anything else."""
    number = _PLAIN_NUMBER.fullmatch(text) if len(text) <= MAX_DIGITS else None
    if number is None or not number[2]:
        return None
    denominator = int(number[3] or 1)
    return Fraction(number[1] + number[2].replace(",", "")) / denominator if denominator else None
