r"""Verifies mathematical answers (`math`): 1 if the final answer of a response equals the reference, else 0.

A ground truth is a string, a list of strings (one of them must match), or an object `{"answer": string or list, "mode":
...}`. The mode determines how the answer is extracted and compared:

sympy   the default: the answer is extracted by `extraction` and compared by `equivalence` (math-verify over SymPy).
gsm8k   the last number of the line after the last `####`; without `####`, of the last box, or else of the whole
        response (`last_numbers`). It is compared with the reference as a number, without commas. GSM8K's evaluation
        reads `#### number` and compares text (Cobbe et al. 2021, https://arxiv.org/abs/2110.14168); open-instruct's
        verifier uses the last number of the text. This mode keeps the sign, unlike open-instruct. It treats 72.0 as 72,
        and does not read a number out of an expression: 3/4 is not 4.
exact   the whole answer of `extraction`, without extracting a number from its words. It is compared as text, ignoring
        case, white space and the encoding of accents (Unicode NFC). open-instruct's string matcher only reads
        `<answer>`, and ignores punctuation and articles, so that -5 equals 5 and "a" is empty; here they count.

Only the last `MAX_CHARS` characters after the thinking part are read. math-verify's time limits are disabled because
they use SIGALRM, which only works in main threads; the time limit of the verifier call applies instead.

    response ─► extraction ─► normalisation ─► equivalence: text, words, units, structure, plain numbers, algebra
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from tasks.verifiers.mathematics.boxes import find_last_boxed
from tasks.verifiers.mathematics.equivalence import is_equivalent
from tasks.verifiers.mathematics.extraction import MAX_CHARS, Answer, extract_answer, extract_readable_part
from tasks.verifiers.mathematics.last_numbers import find_last_number, find_only_number, find_stated_number
from tasks.verifiers.mathematics.normalisation import find_refusal, tidy
from tasks.verifiers.mathematics.plain_numbers import parse_plain_number
from tasks.verifiers.mathematics.warm_up import warm_up
from tasks.verifiers.scores import GroundTruthError, Score

__all__ = [
    "MAX_CHARS",
    "Answer",
    "answer_of",
    "check_ground_truth",
    "extract_answer",
    "is_equivalent",
    "judge",
    "missing_resources",
    "stated_answer",
    "warm_up",
]

MAX_REFERENCE_CHARS = 2_000
"""Maximum length of a reference in characters."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` unless the ground truth has one of the formats in the package's docstring."""
    _read(ground_truth)


def missing_resources(ground_truth: Any) -> list[str]:
    """Return an empty list: this verifier needs no data."""
    return []


def judge(response: str, ground_truth: Any, messages: Any = None) -> Score:
    """Score 1 if the response's final answer equals the reference, or one of a list of references; else 0."""
    wanted = _read(ground_truth)
    answer = _FINDERS[wanted.mode](response)
    if answer is None:
        return Score.binary(False, "no answer found")
    if reason := find_refusal(answer.text):
        return Score.binary(False, f"{answer.form}: {answer.text[:80]!r} {reason}")
    passed = any(_RELATIONS[wanted.mode](answer.text, reference) for reference in wanted.references)
    relation = "equals" if passed else "differs from"
    return Score.binary(
        passed, f"{answer.form}: {answer.text[:80]!r} {relation} {' | '.join(wanted.references)[:80]!r}"
    )


def stated_answer(response: str, ground_truth: Any) -> str | None:
    """Return the text of the final answer, given a well-formed ground truth, or None if there is no answer."""
    answer = _FINDERS[_read(ground_truth).mode](response)
    return None if answer is None else answer.text


def answer_of(response: str, ground_truth: Any) -> str:
    """Return a text that is equal for responses that state the same answer, given a well-formed ground truth."""
    wanted = _read(ground_truth)
    return repr((_FINDERS[wanted.mode](response), wanted))


@dataclass(frozen=True)
class _Wanted:
    references: list[str]
    mode: str


def _read(ground_truth: Any) -> _Wanted:
    """Check a ground truth and return its references and its mode."""
    mode, answers = "sympy", ground_truth
    if isinstance(ground_truth, dict):
        if unknown := set(ground_truth) - {"answer", "mode"}:
            raise GroundTruthError(f"unknown keys {sorted(map(str, unknown))}; accepted: answer, mode")
        if "answer" not in ground_truth:
            raise GroundTruthError(f"expected an object with 'answer', got {ground_truth!r:.200}")
        mode, answers = ground_truth.get("mode", "sympy"), ground_truth["answer"]
        if not isinstance(mode, str) or mode not in _FINDERS:
            raise GroundTruthError(f"mode is {mode!r:.80}; accepted: {', '.join(_FINDERS)}")
    references = answers if isinstance(answers, list) else [answers]
    if not references:
        raise GroundTruthError("the list of accepted answers is empty")
    for reference in references:
        if not isinstance(reference, str) or not tidy(reference):
            raise GroundTruthError(f"expected a non-empty string or a list of them, got {ground_truth!r:.200}")
        if len(reference) > MAX_REFERENCE_CHARS:
            raise GroundTruthError(f"a reference of {len(reference)} characters; at most {MAX_REFERENCE_CHARS}")
        if mode == "gsm8k" and parse_plain_number(_remove_commas(reference)) is None:
            raise GroundTruthError(f"mode gsm8k expects a number, got {reference!r:.80}")
    return _Wanted(references, mode)


def _extract_last_number(response: str) -> Answer | None:
    """Return the answer of mode `gsm8k`."""
    before, hashes, after = extract_readable_part(response).rpartition("####")
    text = after.strip().partition("\n")[0] if hashes else before + after
    boxed = find_last_boxed(text)
    if boxed is not None:
        return _answer("boxed", find_only_number(boxed))
    return _answer("hashes", find_stated_number(text)) if hashes else _answer("number", find_last_number(text))


def _answer(form: str, number: str | None) -> Answer | None:
    return None if number is None else Answer(form, number)


def _is_same_number(answer: str, reference: str) -> bool:
    ours, theirs = parse_plain_number(answer), parse_plain_number(_remove_commas(reference))
    return ours is not None and theirs is not None and ours.value == theirs.value


def _is_same_string(answer: str, reference: str) -> bool:
    return _normalize_string(answer) == _normalize_string(reference)


def _normalize_string(text: str) -> str:
    """Return a text without white space, case-folded and in Unicode NFC."""
    composed = unicodedata.normalize("NFC", "".join(text.split()))
    return unicodedata.normalize("NFC", composed.casefold())


def _remove_commas(text: str) -> str:
    return re.sub(r"(?<=[0-9]),(?=[0-9])", "", text).strip()


_FINDERS: dict[str, Callable[[str], Answer | None]] = {
    "sympy": extract_answer,
    "gsm8k": _extract_last_number,
    "exact": partial(extract_answer, whole=True),
}
MODES = tuple(_FINDERS)
"""Accepted values of `mode` in a ground truth."""
_RELATIONS: dict[str, Callable[[str, str], bool]] = {
    "sympy": is_equivalent,
    "gsm8k": _is_same_number,
    "exact": _is_same_string,
}
