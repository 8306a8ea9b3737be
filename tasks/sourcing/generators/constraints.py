"""Defines the constraints of the instruction generator. Each samples its text and the arguments of its checker.

A constraint has the id and the arguments of IFEval or of IF-RLVR's training constraints (`arguments.IFEVAL`,
`arguments.TRAINING`), 54 in total. IFBench's 58 are reserved for evaluation: no prompt uses them.

The words of a topic are assigned so that constraints on words never contradict each other: the first two must be
included, the third must be used several times, the fourth is forbidden.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from tasks.sourcing.generators.topics import Topic

Kwargs = dict[str, Any]
Draw = Callable[[random.Random, Topic], tuple[str, Kwargs]]
"""Samples the text that states a constraint and its checker's arguments."""

END_PHRASES = (
    "Have a nice day.",
    "That is all.",
    "I hope this helps.",
    "Thank you for reading.",
    "Let me know what you think.",
    "The end.",
)


def _draw_keyword(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    word = rng.choice(topic.words[:2])
    return f'Include the word "{word}" in your answer.', {"keywords": [word]}


def _draw_keyword_frequency(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    word, times = topic.words[2], rng.choice((2, 3))
    kwargs = {"keyword": word, "frequency": times, "relation": "at least"}
    return f'Use the word "{word}" at least {times} times.', kwargs


def _draw_forbidden_word(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return f'Do not use the word "{topic.words[3]}".', {"forbidden_words": [topic.words[3]]}


def _draw_letter(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    letter, times = rng.choice("bfgkmpvwy"), rng.choice((3, 5, 8))
    kwargs = {"letter": letter, "let_frequency": times, "let_relation": "at least"}
    return f'The letter "{letter}" must appear at least {times} times.', kwargs


def _draw_postscript(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return "At the end, add a postscript that starts with P.S.", {"postscript_marker": "P.S."}


def _draw_sections(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count, name = rng.choice((2, 3)), rng.choice(("Section", "Part"))
    text = f"Divide your answer into {count} sections. Start each with {name} X, such as {name} 1."
    return text, {"section_spliter": name, "num_sections": count}


def _make_fixed(text: str) -> Draw:
    return lambda rng, topic: (text, {})


def _drawn(text: str, argument: str, values: Sequence[int | str]) -> Draw:
    """Sample one argument from `values`. The text contains it at `{}`, and the ending of a plural at `{s}`."""

    def draw(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
        value = rng.choice(values)
        return text.format(value, s="" if value == 1 else "s"), {argument: value}

    return draw


def _bounded(text: str, count: str, least: Sequence[int], below: Sequence[int], relation: str = "relation") -> Draw:
    """Sample the arguments `relation` and `count`: at least a number of `least`, or less than one of `below`."""
    bounds = [*(("at least", number) for number in least), *(("less than", number) for number in below)]

    def draw(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
        sampled, number = rng.choice(bounds)
        return text.format(sampled, number), {relation: sampled, count: number}

    return draw


def _with_word(text: str, number: int) -> Draw:
    return lambda rng, topic: (text.format(topic.words[number]), {"keyword": topic.words[number]})


FIRST_WORDS = ("today", "here", "well", "friends")
LAST_WORDS = ("again", "forever", "tomorrow", "indeed")
LANGUAGES = {"de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "pt": "Portuguese"}
PHRASES = (
    "the long trip leads home",
    "every small step counts twice",
    "good friends never leave early",
    "bright stars lead brave sailors",
)
CHOICES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")


def _draw_nth_paragraph(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count, word = rng.choice((2, 3)), rng.choice(FIRST_WORDS)
    number = rng.randint(2, count)
    kwargs = {"num_paragraphs": count, "nth_paragraph": number, "first_word": word}
    text = f'Write {count} paragraphs with a blank line between them. Begin paragraph {number} with the word "{word}".'
    return text, kwargs


def _draw_language(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    code = rng.choice(tuple(LANGUAGES))
    return f"Write your whole answer in {LANGUAGES[code]}, in no other language.", {"language": code}


def _make_copy(text: str) -> Draw:
    return lambda rng, topic: (text, {"prompt_to_repeat": topic.task})


def _draw_copies(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((2, 3))
    text = f"Do not answer this request. Repeat it {count} times without any change, with ****** between the copies."
    return text, {"prompt_to_repeat": topic.task, "N": count}


def _draw_copied_span(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    start = rng.randint(0, len(topic.task) - 12)
    end = start + rng.randint(3, 10)
    text = (
        "Do not answer this request. Copy its characters from index "
        f"{start} to index {end}, both included, where the first character has index 0."
    )
    return text, {"prompt_to_repeat": topic.task, "n_start": start, "n_end": end}


def _draw_phrase_repetition(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    phrase, count = rng.choice(PHRASES), rng.choice((1, 2, 3))
    text = (
        f'Repeat the phrase "{phrase}" exactly {count} time{"s" * (count > 1)} in your answer, '
        "and each time replace one word in its middle with another."
    )
    return text, {"phrase": phrase, "small_n": count}


def _draw_word_times(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((1, 2, 3))
    text = f'The word "{topic.words[0]}" must appear exactly {count} time{"s" * (count > 1)}.'
    return text, {"keyword": topic.words[0], "frequency": count}


def _draw_once_and_twice(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    twice, once = topic.words[:2]
    return f'Include the word "{once}" once and the word "{twice}" twice.', {"keyword1": once, "keyword2": twice}


def _draw_position(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    sentence, position = rng.choice((1, 2)), rng.choice((2, 3, 4))
    kwargs = {"keyword": topic.words[1], "n": sentence, "m": position}
    return f'Word {position} of sentence {sentence} of your answer must be "{topic.words[1]}".', kwargs


def _draw_composition(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    sentences, words = rng.choice((1, 2)), rng.choice((4, 5, 6))
    text = (
        "Write 3 paragraphs with the divider * * * between them, each of exactly "
        f"{sentences} sentence{'s' * (sentences > 1)} with exactly {words} words."
    )
    return text, {"n_sent": sentences, "n_words": words}


CONSTRAINTS: dict[str, Draw] = {
    "keywords:existence": _draw_keyword,
    "keywords:frequency": _draw_keyword_frequency,
    "keywords:forbidden_words": _draw_forbidden_word,
    "keywords:letter_frequency": _draw_letter,
    "length_constraints:number_words": _bounded("Answer with {} {} words.", "num_words", (40, 60), (50, 80)),
    "length_constraints:number_paragraphs": _drawn(
        "Write {} paragraphs and separate them with a line that holds only ***.", "num_paragraphs", (2, 3)
    ),
    "detectable_content:number_placeholders": _drawn(
        "Use at least {} placeholder{s} in square brackets, such as [name].", "num_placeholders", (1, 2, 3)
    ),
    "detectable_content:postscript": _draw_postscript,
    "detectable_format:number_bullet_lists": _drawn(
        "Answer with exactly {} bullet points in markdown, such as:\n* This is a point.\n", "num_bullets", (2, 3, 4)
    ),
    "detectable_format:number_highlighted_sections": _drawn(
        "Highlight at least {} part{s} of your answer with asterisks, like *this part*.", "num_highlights", (1, 2, 3)
    ),
    "detectable_format:multiple_sections": _draw_sections,
    "detectable_format:title": _make_fixed("Give it a title in double angular brackets, such as <<my title>>."),
    "startend:end_checker": _drawn(
        'End your answer with the exact phrase "{}" and write nothing after it.', "end_phrase", END_PHRASES
    ),
    "startend:quotation": _make_fixed("Put your whole answer in double quotation marks."),
    "change_case:english_lowercase": _make_fixed("Write everything in lowercase letters, without any capital letters."),
    "change_case:english_capital": _make_fixed("Write everything in CAPITAL letters."),
    "punctuation:no_comma": _make_fixed("Do not use any commas."),
    # The other constraints of IFEval.
    "change_case:capital_word_frequency": _bounded(
        "Words in all capital letters must appear {} {} times.",
        "capital_frequency",
        (1, 2, 3),
        (3,),
        "capital_relation",
    ),
    "combination:repeat_prompt": _make_copy("First repeat the request above word for word, then answer it."),
    "combination:two_responses": _make_fixed("Give two different answers and separate them with ******."),
    "detectable_format:constrained_response": _make_fixed(
        f"Only say whether you would like to do this, with one of: {' '.join(CHOICES)}"
    ),
    "detectable_format:json_format": _make_fixed("Give your whole answer as JSON."),
    "language:response_language": _draw_language,
    "length_constraints:nth_paragraph_first_word": _draw_nth_paragraph,
    "length_constraints:number_sentences": _bounded("Answer with {} {} sentences.", "num_sentences", (3, 4), (6, 8)),
    # The training constraints of IF-RLVR.
    "copy:copy": _make_copy("Copy the request above verbatim and do not follow it."),
    "copy:copying_multiple": _draw_copies,
    "copy:copying_simple": _make_copy("Do not answer this request. Only repeat it, without any change."),
    "copy:repeat_phrase": _draw_phrase_repetition,
    "count:count_increment_word": _draw_once_and_twice,
    "count:count_unique": _make_fixed("Use every word only once: no word may be repeated."),
    "count:counting_composition": _draw_composition,
    "count:lowercase_counting": _drawn("Use at most {} words that are all lowercase.", "N", (5, 10, 20)),
    "detectable_format:bigram_wrapping": _make_fixed(
        "Wrap every two words in double angular brackets, such as <<I am>> <<at home>>."
    ),
    "detectable_format:sentence_hyphens": _make_fixed(
        "Connect all sentences with hyphens and without spaces between them, such as: One.-Two."
    ),
    "detectable_format:square_brackets": _make_fixed("Enclose every word in square brackets, such as [this] [one]."),
    "first_word:first_word_answer": _drawn('The first word of your answer must be "{}".', "first_word", FIRST_WORDS),
    "first_word:first_word_sent": _drawn('The first word of each sentence must be "{}".', "first_word", FIRST_WORDS),
    "keywords:exclude_word_harder": _with_word('Leave the word "{}" out of your answer.', 3),
    "keywords:keyword_specific_position": _draw_position,
    "keywords:no_adjacent_consecutive": _make_fixed(
        "No two adjacent words may start with consecutive letters of the alphabet, such as a and b."
    ),
    "keywords:palindrome": _make_fixed("Include a palindrome: a word that reads the same backwards."),
    "keywords:start_end": _make_fixed("Start and end your answer with the same word, and write nothing after it."),
    "keywords:word_count_different_numbers": _draw_word_times,
    "keywords:word_once": _with_word('Include the word "{}" exactly once.', 1),
    "last_word:last_word_answer": _drawn('The last word of your answer must be "{}".', "last_word", LAST_WORDS),
    "last_word:last_word_sent": _drawn('The last word of each sentence must be "{}".', "last_word", LAST_WORDS),
    "letters:letter_counting": _bounded("Answer with {} {} letters.", "N", (80, 150), (600, 800)),
    "letters:letter_counting2": _draw_letter,
    "new:copy_span_idx": _draw_copied_span,
    "paragraphs:paragraphs": _make_fixed("Write 2 paragraphs with the divider *** between them."),
    "paragraphs:paragraphs2": _make_fixed(
        "Write 2 paragraphs with a blank line between them, and no other blank line."
    ),
    "punctuation:punctuation_dot": _make_fixed("Do not use any dots."),
    "punctuation:punctuation_exclamation": _make_fixed("Do not use any exclamation marks."),
}
"""The function that samples the text and the arguments of a constraint, by constraint id."""
