"""Lists the conflicts of constraints: pairs that one answer cannot, or cannot naturally, satisfy together."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import combinations, product

from tasks.sourcing.generators.constraints import CONSTRAINTS

ALONE = (
    "combination:repeat_prompt",
    "combination:two_responses",
    "copy:copy",
    "copy:copying_multiple",
    "copy:copying_simple",
    "detectable_format:constrained_response",
    "detectable_format:json_format",
    "language:response_language",
    "new:copy_span_idx",
)
"""Constraints that determine the whole answer, so that no other constraint can be combined with them."""

_CASES = ("change_case:english_lowercase", "change_case:english_capital")
_BULLETS, _HIGHLIGHTS = "detectable_format:number_bullet_lists", "detectable_format:number_highlighted_sections"
_SECTIONS, _TITLE = "detectable_format:multiple_sections", "detectable_format:title"
_POSTSCRIPT, _END, _QUOTATION = "detectable_content:postscript", "startend:end_checker", "startend:quotation"
_PLACEHOLDERS, _COMPOSITION = "detectable_content:number_placeholders", "count:counting_composition"
_BIGRAMS, _BRACKETS = "detectable_format:bigram_wrapping", "detectable_format:square_brackets"
_HYPHENS, _PHRASE = "detectable_format:sentence_hyphens", "copy:repeat_phrase"
_UNIQUE, _DOTS = "count:count_unique", "punctuation:punctuation_dot"
_FIRST, _FIRSTS = "first_word:first_word_answer", "first_word:first_word_sent"
_LAST, _LASTS = "last_word:last_word_answer", "last_word:last_word_sent"
_START_END, _POSITION = "keywords:start_end", "keywords:keyword_specific_position"
_ONCE, _TIMES, _TWICE = "keywords:word_once", "keywords:word_count_different_numbers", "count:count_increment_word"
_SENTENCES, _WORDS = "length_constraints:number_sentences", "length_constraints:number_words"
_PARAGRAPHS = (
    "length_constraints:number_paragraphs",
    "length_constraints:nth_paragraph_first_word",
    "paragraphs:paragraphs",
    "paragraphs:paragraphs2",
    _COMPOSITION,
)

# At most one of each group: its members determine the whole answer, want the same place in it, or say the same twice.
_ONE_OF: tuple[tuple[str, ...], ...] = (
    (*_CASES, "change_case:capital_word_frequency"),
    ("change_case:english_lowercase", "count:lowercase_counting"),
    (*_PARAGRAPHS, _BULLETS, _HYPHENS, _BIGRAMS, _BRACKETS),
    (*_PARAGRAPHS, _SECTIONS, _HYPHENS, _BIGRAMS, _BRACKETS),
    (*_PARAGRAPHS, _HIGHLIGHTS, _HYPHENS, _BIGRAMS, _BRACKETS),
    (_HIGHLIGHTS, _BULLETS),
    (_HIGHLIGHTS, _SECTIONS),
    (_FIRST, _FIRSTS),
    (_TITLE, _QUOTATION, _HYPHENS, _BIGRAMS, _BRACKETS, _COMPOSITION),
    (_PLACEHOLDERS, _BIGRAMS, _BRACKETS),
    (_END, _POSTSCRIPT, _LAST, _LASTS, _START_END, _BIGRAMS, _BRACKETS, _COMPOSITION),
    (_QUOTATION, _END),
    (_QUOTATION, _START_END),
    (_POSTSCRIPT, _FIRSTS, _HYPHENS),
    (_SENTENCES, _HYPHENS, _BULLETS),
    (_SENTENCES, _BIGRAMS),
    (_POSITION, _BIGRAMS),
    ("keywords:forbidden_words", "keywords:exclude_word_harder"),
    ("keywords:letter_frequency", "letters:letter_counting2"),
    (_ONCE, _TWICE, _POSITION),
    (_TIMES, _TWICE),
)

_PAIRS: tuple[tuple[Iterable[str], Iterable[str]], ...] = (
    # Text in capitals with few words to choose from is often not detected as English.
    (("change_case:english_capital",), ("keywords:no_adjacent_consecutive",)),
    # These contain text whose case, punctuation or first word violates the other constraint.
    (_CASES, (_END, _SECTIONS)),
    (("change_case:english_lowercase",), (_POSTSCRIPT,)),
    ((_DOTS,), (_END, _POSTSCRIPT)),
    ((_END,), (_FIRSTS, "keywords:no_adjacent_consecutive")),
    (("length_constraints:nth_paragraph_first_word",), (_FIRST, _FIRSTS, _POSITION)),
    # Headings come before the first word, and count as words of the first sentence.
    ((_TITLE, _SECTIONS), (_FIRST, _FIRSTS, _START_END, _POSITION)),
    # A postscript after a blank line is one paragraph more.
    ((_POSTSCRIPT,), ("length_constraints:nth_paragraph_first_word", "paragraphs:paragraphs2")),
    # The number of words is fixed, and in capitals too small to be detected as English.
    ((_COMPOSITION,), (_WORDS, _SENTENCES, "letters:letter_counting", _PHRASE, "change_case:english_capital")),
    # These require a word, a part or a sentence to be repeated.
    (
        (_UNIQUE,),
        (_TIMES, _TWICE, _START_END, _FIRSTS, _LASTS, _PHRASE, _SECTIONS, _COMPOSITION, "keywords:frequency"),
    ),
)

CONFLICTS: frozenset[frozenset[str]] = frozenset(
    frozenset(pair)
    for pairs in (
        *(combinations(group, 2) for group in _ONE_OF),
        *(product(*sides) for sides in _PAIRS),
        ((name, other) for name in ALONE for other in CONSTRAINTS if other != name),
    )
    for pair in pairs
)
"""The pairs of constraint ids in conflict."""


def can_combine(ids: Sequence[str]) -> bool:
    """Return True if one answer can satisfy all constraints."""
    return not any(frozenset(pair) in CONFLICTS for pair in combinations(ids, 2))
