"""Defines the constraints of the instruction generator. Each samples its text and the arguments of its checker.

A constraint has the id and the arguments of IFEval or of IF-RLVR's training constraints (`arguments.IFEVAL`,
`arguments.TRAINING`), 54 in total. IFBench's 58 are reserved for evaluation: no prompt uses them.

The words of a topic are assigned so that constraints on words never contradict each other: the first two must be
included, the third must be used several times, the fourth is forbidden.
"""

from __future__ import annotations

import random
from collections.abc import Callable
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


def _draw_words(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    relation, count = rng.choice((("at least", 40), ("at least", 60), ("less than", 50), ("less than", 80)))
    return f"Answer with {relation} {count} words.", {"relation": relation, "num_words": count}


def _draw_paragraphs(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((2, 3))
    return f"Write {count} paragraphs and separate them with a line that holds only ***.", {"num_paragraphs": count}


def _draw_placeholders(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((1, 2, 3))
    text = f"Use at least {count} placeholder{'s' * (count > 1)} in square brackets, such as [name]."
    return text, {"num_placeholders": count}


def _draw_postscript(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return "At the end, add a postscript that starts with P.S.", {"postscript_marker": "P.S."}


def _draw_bullets(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((2, 3, 4))
    text = f"Answer with exactly {count} bullet points in markdown, such as:\n* This is a point.\n"
    return text, {"num_bullets": count}


def _draw_highlights(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((1, 2, 3))
    text = f"Highlight at least {count} part{'s' * (count > 1)} of your answer with asterisks, like *this part*."
    return text, {"num_highlights": count}


def _draw_sections(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count, name = rng.choice((2, 3)), rng.choice(("Section", "Part"))
    text = f"Divide your answer into {count} sections. Start each with {name} X, such as {name} 1."
    return text, {"section_spliter": name, "num_sections": count}


def _draw_end(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    phrase = rng.choice(END_PHRASES)
    return f'End your answer with the exact phrase "{phrase}" and write nothing after it.', {"end_phrase": phrase}


def _make_fixed(text: str) -> Draw:
    return lambda rng, topic: (text, {})


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


def _draw_capital_words(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    relation, count = rng.choice((("at least", 1), ("at least", 2), ("at least", 3), ("less than", 3)))
    kwargs = {"capital_frequency": count, "capital_relation": relation}
    return f"Words in all capital letters must appear {relation} {count} times.", kwargs


def _draw_sentences(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    relation, count = rng.choice((("at least", 3), ("at least", 4), ("less than", 6), ("less than", 8)))
    return f"Answer with {relation} {count} sentences.", {"relation": relation, "num_sentences": count}


def _draw_nth_paragraph(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count, word = rng.choice((2, 3)), rng.choice(FIRST_WORDS)
    number = rng.randint(2, count)
    kwargs = {"num_paragraphs": count, "nth_paragraph": number, "first_word": word}
    text = f'Write {count} paragraphs with a blank line between them. Begin paragraph {number} with the word "{word}".'
    return text, kwargs


def _draw_language(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    code = rng.choice(tuple(LANGUAGES))
    return f"Write your whole answer in {LANGUAGES[code]}, in no other language.", {"language": code}


def _draw_prompt_repetition(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return "First repeat the request above word for word, then answer it.", {"prompt_to_repeat": topic.task}


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


def _draw_word_once(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return f'Include the word "{topic.words[1]}" exactly once.', {"keyword": topic.words[1]}


def _draw_word_times(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((1, 2, 3))
    text = f'The word "{topic.words[0]}" must appear exactly {count} time{"s" * (count > 1)}.'
    return text, {"keyword": topic.words[0], "frequency": count}


def _draw_once_and_twice(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    twice, once = topic.words[:2]
    return f'Include the word "{once}" once and the word "{twice}" twice.', {"keyword1": once, "keyword2": twice}


def _draw_excluded_word(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return f'Leave the word "{topic.words[3]}" out of your answer.', {"keyword": topic.words[3]}


def _draw_position(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    sentence, position = rng.choice((1, 2)), rng.choice((2, 3, 4))
    kwargs = {"keyword": topic.words[1], "n": sentence, "m": position}
    return f'Word {position} of sentence {sentence} of your answer must be "{topic.words[1]}".', kwargs


def _make_first_word(text: str) -> Draw:
    def draw(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
        word = rng.choice(FIRST_WORDS)
        return text.format(word), {"first_word": word}

    return draw


def _make_last_word(text: str) -> Draw:
    def draw(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
        word = rng.choice(LAST_WORDS)
        return text.format(word), {"last_word": word}

    return draw


def _draw_letters(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    relation, count = rng.choice((("at least", 80), ("at least", 150), ("less than", 600), ("less than", 800)))
    return f"Answer with {relation} {count} letters.", {"relation": relation, "N": count}


def _draw_lowercase_words(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((5, 10, 20))
    return f"Use at most {count} words that are all lowercase.", {"N": count}


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
    "length_constraints:number_words": _draw_words,
    "length_constraints:number_paragraphs": _draw_paragraphs,
    "detectable_content:number_placeholders": _draw_placeholders,
    "detectable_content:postscript": _draw_postscript,
    "detectable_format:number_bullet_lists": _draw_bullets,
    "detectable_format:number_highlighted_sections": _draw_highlights,
    "detectable_format:multiple_sections": _draw_sections,
    "detectable_format:title": _make_fixed("Give it a title in double angular brackets, such as <<my title>>."),
    "startend:end_checker": _draw_end,
    "startend:quotation": _make_fixed("Put your whole answer in double quotation marks."),
    "change_case:english_lowercase": _make_fixed("Write everything in lowercase letters, without any capital letters."),
    "change_case:english_capital": _make_fixed("Write everything in CAPITAL letters."),
    "punctuation:no_comma": _make_fixed("Do not use any commas."),
    # The other constraints of IFEval.
    "change_case:capital_word_frequency": _draw_capital_words,
    "combination:repeat_prompt": _draw_prompt_repetition,
    "combination:two_responses": _make_fixed("Give two different answers and separate them with ******."),
    "detectable_format:constrained_response": _make_fixed(
        f"Only say whether you would like to do this, with one of: {' '.join(CHOICES)}"
    ),
    "detectable_format:json_format": _make_fixed("Give your whole answer as JSON."),
    "language:response_language": _draw_language,
    "length_constraints:nth_paragraph_first_word": _draw_nth_paragraph,
    "length_constraints:number_sentences": _draw_sentences,
    # The training constraints of IF-RLVR.
    "copy:copy": _make_copy("Copy the request above verbatim and do not follow it."),
    "copy:copying_multiple": _draw_copies,
    "copy:copying_simple": _make_copy("Do not answer this request. Only repeat it, without any change."),
    "copy:repeat_phrase": _draw_phrase_repetition,
    "count:count_increment_word": _draw_once_and_twice,
    "count:count_unique": _make_fixed("Use every word only once: no word may be repeated."),
    "count:counting_composition": _draw_composition,
    "count:lowercase_counting": _draw_lowercase_words,
    "detectable_format:bigram_wrapping": _make_fixed(
        "Wrap every two words in double angular brackets, such as <<I am>> <<at home>>."
    ),
    "detectable_format:sentence_hyphens": _make_fixed(
        "Connect all sentences with hyphens and without spaces between them, such as: One.-Two."
    ),
    "detectable_format:square_brackets": _make_fixed("Enclose every word in square brackets, such as [this] [one]."),
    "first_word:first_word_answer": _make_first_word('The first word of your answer must be "{}".'),
    "first_word:first_word_sent": _make_first_word('The first word of each sentence must be "{}".'),
    "keywords:exclude_word_harder": _draw_excluded_word,
    "keywords:keyword_specific_position": _draw_position,
    "keywords:no_adjacent_consecutive": _make_fixed(
        "No two adjacent words may start with consecutive letters of the alphabet, such as a and b."
    ),
    "keywords:palindrome": _make_fixed("Include a palindrome: a word that reads the same backwards."),
    "keywords:start_end": _make_fixed("Start and end your answer with the same word, and write nothing after it."),
    "keywords:word_count_different_numbers": _draw_word_times,
    "keywords:word_once": _draw_word_once,
    "last_word:last_word_answer": _make_last_word('The last word of your answer must be "{}".'),
    "last_word:last_word_sent": _make_last_word('The last word of each sentence must be "{}".'),
    "letters:letter_counting": _draw_letters,
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
