"""Defines the constraints of the instruction generator. Each samples its text and the arguments of its checker.

A constraint has the id and the arguments of IFEval or of IF-RLVR's training constraints (`arguments.IFEVAL`,
`arguments.TRAINING`), 54 in total. IFBench's 58 are reserved for evaluation: no prompt uses them.

The words of a topic are assigned so that constraints on words never contradict each other: the first two must be
included, the third must be used several times, the fourth is forbidden.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from tasks.sourcing.generators.topics import Topic

Kwargs = dict[str, Any]
Draw = Callable[[random.Random, Topic], tuple[str, Kwargs]]
"""Samples the text that states a constraint and its checker's arguments."""

FILE = Path(__file__).with_suffix(".json")
"""The constraints by id, in the order of sampling, and `words`: lists that several of them sample from.

A constraint has a `text` and the `arguments` of its checker, or is null if it has a function here. The text contains
the argument `a` at `{a}`, and the ending of a plural, if `a` is not 1, at `{a_s}`. The value of an argument is fixed,
sampled (`one_of`: a list, or the name of one in `words`), or taken from the topic (`topic`: `task`, or the number of a
word). Of a list of arguments, one item is sampled.
"""

LANGUAGES = {"de": "German", "es": "Spanish", "fr": "French", "it": "Italian", "pt": "Portuguese"}

_CONTENT = json.loads(FILE.read_text())

WORDS: dict[str, list[str]] = _CONTENT["words"]
"""The words and sentences that constraints sample from, by the name of their list."""


def _draw(
    rng: random.Random, topic: Topic, *, text: str, arguments: dict[str, Any] | list[dict[str, Any]]
) -> tuple[str, Kwargs]:
    drawn = rng.choice(arguments) if isinstance(arguments, list) else arguments
    kwargs = {name: _draw_value(rng, topic, value) for name, value in drawn.items()}
    endings = {f"{name}_s": "" if value == 1 else "s" for name, value in kwargs.items()}
    return text.format(**kwargs, **endings), kwargs


def _draw_value(rng: random.Random, topic: Topic, value: Any) -> Any:
    match value:
        case {"one_of": values}:
            return rng.choice(WORDS[values] if isinstance(values, str) else values)
        case {"topic": "task"}:
            return topic.task
        case {"topic": number}:
            return topic.words[number]
    return value


def _draw_keyword(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    word = rng.choice(topic.words[:2])
    return f'Include the word "{word}" in your answer.', {"keywords": [word]}


def _draw_forbidden_word(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return f'Do not use the word "{topic.words[3]}".', {"forbidden_words": [topic.words[3]]}


def _draw_nth_paragraph(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count, word = rng.choice((2, 3)), rng.choice(WORDS["first_words"])
    number = rng.randint(2, count)
    kwargs = {"num_paragraphs": count, "nth_paragraph": number, "first_word": word}
    text = f'Write {count} paragraphs with a blank line between them. Begin paragraph {number} with the word "{word}".'
    return text, kwargs


def _draw_language(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    code = rng.choice(tuple(LANGUAGES))
    return f"Write your whole answer in {LANGUAGES[code]}, in no other language.", {"language": code}


def _draw_copied_span(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    start = rng.randint(0, len(topic.task) - 12)
    end = start + rng.randint(3, 10)
    text = (
        "Do not answer this request. Copy its characters from index "
        f"{start} to index {end}, both included, where the first character has index 0."
    )
    return text, {"prompt_to_repeat": topic.task, "n_start": start, "n_end": end}


_FUNCTIONS: dict[str, Draw] = {
    "keywords:existence": _draw_keyword,
    "keywords:forbidden_words": _draw_forbidden_word,
    "language:response_language": _draw_language,
    "length_constraints:nth_paragraph_first_word": _draw_nth_paragraph,
    "new:copy_span_idx": _draw_copied_span,
}

CONSTRAINTS: dict[str, Draw] = {
    name: _FUNCTIONS[name] if constraint is None else partial(_draw, **constraint)
    for name, constraint in _CONTENT["constraints"].items()
}
"""The function that samples the text and the arguments of a constraint, by constraint id."""
