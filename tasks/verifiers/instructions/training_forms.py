"""Checks IF-RLVR's training constraints on form: copies, brackets, dividers, punctuation (Pyatkin et al. 2025).

As in `training_words`, each check is a pure function whose docstring states the constraint as prompts do. If
open-instruct's check ("the published check") differs from what its prompt says, the docstring states how.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tasks.verifiers.instructions.texts import split_sentences, words

_BIGRAM = re.compile(r"<<([^\s<>]+)(?:\s([^\s<>]+))?>>")
_BETWEEN_BIGRAMS = re.compile(r"[^\w<>]*")
_BRACKETED = re.compile(r"[^\w\[\]]*\[[^\[\]\s]+\][^\w\[\]]*")
_DIVIDER = re.compile(r"\* ?\* ?\*")
_SENTENCES_UNSPLIT = re.compile(r"\n|[\u3002\uff01\uff1f]\s*\w")
_HYPHEN_AFTER_SENTENCE = re.compile(r"(?<=[.!?])-|(?<=[.!?][\"')\]\u201d\u2019])-")


def copying_simple(response: str, prompt_to_repeat: str) -> bool:
    """Check the constraint: Repeat the request without change, and do not answer it.

    The published check ignores case.
    """
    return response.strip() == prompt_to_repeat.strip()


def copy(response: str, prompt_to_repeat: str) -> bool:
    """Check the constraint: Copy this instruction verbatim, do not follow it.

    The published check ignores case.
    """
    return copying_simple(response, prompt_to_repeat)


def copying_multiple(response: str, prompt_to_repeat: str, N: int) -> bool:  # noqa: N803 (its published name)
    """Check the constraint: Repeat the request without change {N} times, separated by 6 asterisks.

    The published check ignores case.
    """
    parts = response.split("******")
    return len(parts) == N and all(copying_simple(part, prompt_to_repeat) for part in parts)


def copy_span_idx(response: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Check the constraint: Copy the span between, and including, the character indices {n_start} and {n_end}, counted
    from 0.

    The published check omits the last character, contrary to its prompt, and samples a random start if the start is 0.
    """
    return response.strip() == prompt_to_repeat[n_start : n_end + 1].strip()


def repeat_phrase(response: str, phrase: str, small_n: int) -> bool:
    """Check the constraint: Repeat the phrase exactly {small_n} times, each time with one word in its centre replaced.

    The centre is all words except the first and the last. In the published check, only the last repetition must differ.
    """
    answered, wanted = words(response), words(phrase)
    repetitions, start = 0, 0
    while wanted and start + len(wanted) <= len(answered):
        window = answered[start : start + len(wanted)]
        ends_match = window[0] == wanted[0] and window[-1] == wanted[-1]
        changes = sum(a != b for a, b in zip(window, wanted, strict=True)) if ends_match else len(wanted)
        if changes == 0:
            return False
        repetitions += changes == 1
        start += len(wanted) if changes == 1 else 1
    return repetitions == small_n


def counting_composition(response: str, n_sent: int, n_words: int) -> bool:
    """Check the constraint: Write 3 paragraphs, delimited by * * *, with exactly {n_sent} sentences of exactly
    {n_words} words each.

    The blanks in the divider are optional, as in the published check, which also counts punctuation as words.
    """
    paragraphs = [split_sentences(part) for part in _drop_blank_ends(_DIVIDER.split(response))]
    return len(paragraphs) == 3 and all(
        len(paragraph) == n_sent and all(len(words(each)) == n_words for each in paragraph) for paragraph in paragraphs
    )


def paragraphs(response: str) -> bool:
    """Check the constraint: There should be 2 paragraphs, separated with the markdown divider ***."""
    return _has_two(_drop_blank_ends(response.split("***")))


def paragraphs2(response: str) -> bool:
    """Check the constraint: There should be 2 paragraphs.

    Two line breaks separate paragraphs, and may not be used otherwise.
    """
    return _has_two(_drop_blank_ends(response.split("\n\n")))


def _drop_blank_ends(split: list[str]) -> list[str]:
    """Return the parts of a split text, without a blank part before the first divider or after the last."""
    start, end = not split[0].strip(), len(split) - (not split[-1].strip())
    return split[start:end]


def _has_two(parts: list[str]) -> bool:
    return len(parts) == 2 and all(map(str.strip, parts))


def bigram_wrapping(response: str) -> bool:
    """Check the constraint: Wrap every word bigram in double angular brackets, such as <<I am>> <<at home>>.

    Only the last word of an odd number of words may be alone in its brackets. In the published check it needs no
    brackets, and neither does a single word.
    """
    position, alone = 0, False
    for bigram in _BIGRAM.finditer(response):
        if alone or not _BETWEEN_BIGRAMS.fullmatch(response, position, bigram.start()):
            return False
        position, alone = bigram.end(), bigram[2] is None
    return position > 0 and _BETWEEN_BIGRAMS.fullmatch(response, position) is not None


def square_brackets(response: str) -> bool:
    """Check the constraint: Enclose every word in your response within square brackets.

    Punctuation may be outside the brackets, unlike in the published check.
    """
    bracketed = [_BRACKETED.fullmatch(each) is not None for each in response.split() if re.search(r"[\w\[\]]", each)]
    return bool(bracketed) and all(bracketed)


def sentence_hyphens(response: str) -> bool:
    """Check the constraint: All sentences must be connected using hyphens, with no spaces between them.

    A hyphen inside a sentence does not connect sentences; the published check counts it. Lines are also sentences, so
    that omitting a full stop does not hide a sentence.
    """
    parts = _HYPHEN_AFTER_SENTENCE.split(response.strip())
    return all(
        part == part.strip() and len(split_sentences(part)) == 1 and not _SENTENCES_UNSPLIT.search(part)
        for part in parts
    )


def punctuation_dot(response: str) -> bool:
    """Check the constraint: Refrain from the use of dots, as punctuation and in general."""
    return "." not in response


def punctuation_exclamation(response: str) -> bool:
    """Check the constraint: Refrain from the use of exclamation marks, as punctuation and in general."""
    return "!" not in response


CHECKS: dict[str, Callable[..., bool]] = {
    "copy:copy": copy,
    "copy:copying_multiple": copying_multiple,
    "copy:copying_simple": copying_simple,
    "copy:repeat_phrase": repeat_phrase,
    "count:counting_composition": counting_composition,
    "detectable_format:bigram_wrapping": bigram_wrapping,
    "detectable_format:sentence_hyphens": sentence_hyphens,
    "detectable_format:square_brackets": square_brackets,
    "new:copy_span_idx": copy_span_idx,
    "paragraphs:paragraphs": paragraphs,
    "paragraphs:paragraphs2": paragraphs2,
    "punctuation:punctuation_dot": punctuation_dot,
    "punctuation:punctuation_exclamation": punctuation_exclamation,
}
"""The checks of this module by constraint id."""
