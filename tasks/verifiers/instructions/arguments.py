"""Lists the 112 constraints of `precise_if` with their arguments.

`IFEVAL` contains the 25 constraints of IFEval (Zhou et al. 2023, https://arxiv.org/abs/2311.07911). `TRAINING` contains
the 29 that IF-RLVR trains on (Pyatkin et al. 2025, https://arxiv.org/abs/2507.02833). `IFBENCH` contains the 58 of the
benchmark in the same paper, which is for evaluation only. Importing this module loads no checkers.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

LANGUAGES = (
    "en", "es", "pt", "ar", "hi", "fr", "ru", "de", "ja", "it", "bn", "uk", "th", "ur", "ta", "te", "bg", "ko",
    "pl", "he", "fa", "vi", "ne", "sw", "kn", "mr", "gu", "pa", "ml", "fi",
)  # fmt: skip
"""ISO 639-1 codes of the languages that IFEval uses and that its language identifier can distinguish."""

RELATIONS = ("at least", "less than")
"""The two comparisons of a count with its threshold."""


class ArgumentsError(ValueError):
    """The arguments of a constraint are invalid; the message names the constraint and the argument."""


@dataclass(frozen=True)
class Kind:
    """The type of one argument.

    Attributes:
        description: the accepted values in words.
        accepts: returns True for an accepted value.
        optional: True if the argument may be absent.
    """

    description: str
    accepts: Callable[[Any], bool]
    optional: bool = False


def _is_whole(value: Any, low: int, high: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


COUNT = Kind("a count", lambda value: _is_whole(value, 0))
POSITIVE = Kind("a count of at least 1", lambda value: _is_whole(value, 1))
PERCENTAGE = Kind("a whole percentage", lambda value: _is_whole(value, 0, 100))
TEXT = Kind("a text", _is_text)
WORD = Kind("one word", lambda value: _is_text(value) and len(value.split()) == 1)
TEXTS = Kind("a list of texts", lambda value: isinstance(value, list) and bool(value) and all(map(_is_text, value)))
CHARACTER = Kind("one character", lambda value: _is_text(value) and len(value) == 1)
LANGUAGE = Kind(f"one of {', '.join(LANGUAGES)}", lambda value: value in LANGUAGES)
RELATION = Kind("'at least' or 'less than'", lambda value: value in RELATIONS)
PHRASE = Kind("a phrase of at least 3 words", lambda value: _is_text(value) and len(value.split()) >= 3)

Schema = Mapping[str, Kind]
"""The types of the arguments of one constraint, by name."""

IFEVAL: dict[str, Schema] = {
    "change_case:capital_word_frequency": {"capital_frequency": COUNT, "capital_relation": RELATION},
    "change_case:english_capital": {},
    "change_case:english_lowercase": {},
    "combination:repeat_prompt": {"prompt_to_repeat": TEXT},
    "combination:two_responses": {},
    "detectable_content:number_placeholders": {"num_placeholders": COUNT},
    "detectable_content:postscript": {"postscript_marker": TEXT},
    "detectable_format:constrained_response": {},
    "detectable_format:json_format": {},
    "detectable_format:multiple_sections": {"section_spliter": TEXT, "num_sections": COUNT},
    "detectable_format:number_bullet_lists": {"num_bullets": COUNT},
    "detectable_format:number_highlighted_sections": {"num_highlights": COUNT},
    "detectable_format:title": {},
    "keywords:existence": {"keywords": TEXTS},
    "keywords:forbidden_words": {"forbidden_words": TEXTS},
    "keywords:frequency": {"keyword": TEXT, "frequency": COUNT, "relation": RELATION},
    "keywords:letter_frequency": {"letter": CHARACTER, "let_frequency": COUNT, "let_relation": RELATION},
    "language:response_language": {"language": LANGUAGE},
    "length_constraints:nth_paragraph_first_word": {
        "num_paragraphs": POSITIVE,
        "nth_paragraph": POSITIVE,
        "first_word": TEXT,
    },
    "length_constraints:number_paragraphs": {"num_paragraphs": COUNT},
    "length_constraints:number_sentences": {"num_sentences": COUNT, "relation": RELATION},
    "length_constraints:number_words": {"num_words": COUNT, "relation": RELATION},
    "punctuation:no_comma": {},
    "startend:end_checker": {"end_phrase": TEXT},
    "startend:quotation": {},
}
"""Argument types of the constraints of IFEval, by constraint id."""

TRAINING: dict[str, Schema] = {
    "copy:copy": {"prompt_to_repeat": TEXT},
    "copy:copying_multiple": {"prompt_to_repeat": TEXT, "N": POSITIVE},
    "copy:copying_simple": {"prompt_to_repeat": TEXT},
    "copy:repeat_phrase": {"phrase": PHRASE, "small_n": POSITIVE},
    "count:count_increment_word": {"keyword1": TEXT, "keyword2": TEXT},
    "count:count_unique": {},
    "count:counting_composition": {"n_sent": POSITIVE, "n_words": POSITIVE},
    "count:lowercase_counting": {"N": COUNT},
    "detectable_format:bigram_wrapping": {},
    "detectable_format:sentence_hyphens": {},
    "detectable_format:square_brackets": {},
    "first_word:first_word_answer": {"first_word": WORD},
    "first_word:first_word_sent": {"first_word": WORD},
    "keywords:exclude_word_harder": {"keyword": TEXT},
    "keywords:keyword_specific_position": {"keyword": WORD, "n": POSITIVE, "m": POSITIVE},
    "keywords:no_adjacent_consecutive": {},
    "keywords:palindrome": {},
    "keywords:start_end": {},
    "keywords:word_count_different_numbers": {
        "keyword": TEXT,
        "frequency": COUNT,
        "relation": replace(RELATION, optional=True),
    },
    "keywords:word_once": {"keyword": TEXT},
    "last_word:last_word_answer": {"last_word": WORD},
    "last_word:last_word_sent": {"last_word": WORD},
    "letters:letter_counting": {"N": COUNT, "relation": RELATION},
    "letters:letter_counting2": {"letter": CHARACTER, "let_frequency": COUNT, "let_relation": RELATION},
    "new:copy_span_idx": {"prompt_to_repeat": TEXT, "n_start": COUNT, "n_end": COUNT},
    "paragraphs:paragraphs": {},
    "paragraphs:paragraphs2": {},
    "punctuation:punctuation_dot": {},
    "punctuation:punctuation_exclamation": {},
}
"""Argument types of the constraints that IF-RLVR trains on, by constraint id."""

IFBENCH: dict[str, Schema] = {
    "count:conjunctions": {"small_n": COUNT},
    "count:keywords_multiple": {f"keyword{number}": TEXT for number in range(1, 6)},
    "count:numbers": {"N": COUNT},
    "count:person_names": {"N": COUNT},
    "count:pronouns": {"N": COUNT},
    "count:punctuation": {},
    "count:unique_word_count": {"N": COUNT},
    "count:word_count_range": {"min_words": COUNT, "max_words": COUNT},
    "count:words_japanese": {"N": POSITIVE},
    "custom:character_reverse": {},
    "custom:csv_city": {},
    "custom:csv_quotes": {},
    "custom:csv_special_character": {},
    "custom:date_format_list": {},
    "custom:european_capitals_sort": {},
    "custom:mcq_count_length": {},
    "custom:multiples": {},
    "custom:reverse_newline": {},
    "custom:sentence_alphabet": {},
    "custom:word_reverse": {},
    "format:emoji": {},
    "format:line_indent": {},
    "format:list": {"sep": TEXT},
    "format:newline": {},
    "format:no_bullets_bullets": {},
    "format:no_whitespace": {},
    "format:options": {"options": TEXT},
    "format:output_template": {},
    "format:parentheses": {},
    "format:quote_unquote": {},
    "format:quotes": {},
    "format:sub-bullets": {},
    "format:thesis": {},
    "format:title_case": {},
    "ratio:overlap": {"reference_text": TEXT, "percentage": PERCENTAGE},
    "ratio:sentence_balance": {},
    "ratio:sentence_type": {},
    "ratio:sentence_words": {},
    "ratio:stop_words": {"percentage": PERCENTAGE},
    "repeat:repeat_change": {"prompt_to_repeat": TEXT},
    "repeat:repeat_simple": {},
    "repeat:repeat_span": {"prompt_to_repeat": TEXT, "n_start": COUNT, "n_end": COUNT},
    "sentence:alliteration_increment": {},
    "sentence:increment": {"small_n": COUNT},
    "sentence:keyword": {"word": TEXT, "N": POSITIVE},
    "words:alphabet": {},
    "words:consonants": {},
    "words:keywords_specific_position": {"keyword": TEXT, "n": POSITIVE, "m": POSITIVE},
    "words:last_first": {},
    "words:no_consecutive": {},
    "words:odd_even_syllables": {},
    "words:palindrome": {},
    "words:paragraph_last_first": {},
    "words:prime_lengths": {},
    "words:repeats": {"small_n": COUNT},
    "words:start_verb": {},
    "words:vowel": {},
    "words:words_position": {"keyword": TEXT},
}
"""Argument types of the constraints of IFBench, by constraint id."""

SCHEMAS: dict[str, Schema] = IFEVAL | TRAINING | IFBENCH
"""Argument types of all constraints, by constraint id."""

_IN_ORDER = {
    "count:word_count_range": ("min_words", "max_words"),
    "length_constraints:nth_paragraph_first_word": ("nth_paragraph", "num_paragraphs"),
    "new:copy_span_idx": ("n_start", "n_end"),
    "repeat:repeat_span": ("n_start", "n_end"),
}
"""Pairs of arguments by constraint; the first must not be greater than the second."""


def normalize(name: str, given: Any) -> dict[str, Any]:
    """Check the arguments of a known constraint, and return them in the format of its checker.

    Nulls count as absent, because tables have a column for every argument. Integers stored as floats (as in tables with
    nulls) become integers, and a text stored as a list of one text (as in IF-RLVR's rows) becomes the text.

    Raises:
        ArgumentsError: If an argument is unknown, missing or of the wrong type.
    """
    if not isinstance(given, dict):
        raise ArgumentsError(f"the arguments of {name} are not an object")
    wanted = SCHEMAS[name]
    arguments = {key: _normalize_value(value, wanted.get(key)) for key, value in given.items() if value is not None}
    needed = {key for key, kind in wanted.items() if not kind.optional}
    if not needed <= arguments.keys() <= wanted.keys():
        raise ArgumentsError(f"{name} accepts the arguments {sorted(wanted)}")
    for key, value in arguments.items():
        if not wanted[key].accepts(value):
            raise ArgumentsError(f"{name}: {key} must be {wanted[key].description}")
    if name in _IN_ORDER and arguments[_IN_ORDER[name][0]] > arguments[_IN_ORDER[name][1]]:
        raise ArgumentsError(f"{name}: {_IN_ORDER[name][0]} must not be above {_IN_ORDER[name][1]}")
    return arguments


def _normalize_value(value: Any, kind: Kind | None) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in (TEXT, WORD) and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value
