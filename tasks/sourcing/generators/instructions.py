"""Instruction-following prompts: a topic and one to five constraints that IFEval's checkers can verify.

A constraint has IFEval's id, draws IFEval's arguments for it, and says them in one plain sentence. Constraints that
need a sentence or word tokenizer's model to check are left out, and so are those that leave no room for a topic
(repeating the prompt, answering in JSON, choosing among fixed answers).
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import combinations
from typing import Any

from tasks.sourcing.generators import TooFewPromptsError
from tasks.sourcing.generators.topics import TOPICS, Topic

Kwargs = dict[str, Any]
Draw = Callable[[random.Random, Topic], tuple[str, Kwargs]]
"""Draws the sentence that states a constraint and IFEval's arguments for it."""

END_PHRASES = (
    "Have a nice day.",
    "That is all.",
    "I hope this helps.",
    "Thank you for reading.",
    "Let me know what you think.",
    "The end.",
)


def _keyword(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    word = rng.choice(topic.words[:2])
    return f'Include the word "{word}" in your answer.', {"keywords": [word]}


def _keyword_frequency(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    word, times = topic.words[2], rng.choice((2, 3))
    kwargs = {"keyword": word, "frequency": times, "relation": "at least"}
    return f'Use the word "{word}" at least {times} times.', kwargs


def _forbidden_word(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return f'Do not use the word "{topic.words[3]}".', {"forbidden_words": [topic.words[3]]}


def _letter(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    letter, times = rng.choice("bfgkmpvwy"), rng.choice((3, 5, 8))
    kwargs = {"letter": letter, "let_frequency": times, "let_relation": "at least"}
    return f'The letter "{letter}" must appear at least {times} times.', kwargs


def _words(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    relation, count = rng.choice((("at least", 40), ("at least", 60), ("less than", 50), ("less than", 80)))
    return f"Answer with {relation} {count} words.", {"relation": relation, "num_words": count}


def _paragraphs(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((2, 3))
    return f"Write {count} paragraphs and separate them with a line that holds only ***.", {"num_paragraphs": count}


def _placeholders(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((1, 2, 3))
    text = f"Use at least {count} placeholder{'s' * (count > 1)} in square brackets, such as [name]."
    return text, {"num_placeholders": count}


def _postscript(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    return "At the end, add a postscript that starts with P.S.", {"postscript_marker": "P.S."}


def _bullets(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((2, 3, 4))
    text = f"Answer with exactly {count} bullet points in markdown, such as:\n* This is a point.\n"
    return text, {"num_bullets": count}


def _highlights(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count = rng.choice((1, 2, 3))
    text = f"Highlight at least {count} part{'s' * (count > 1)} of your answer with asterisks, like *this part*."
    return text, {"num_highlights": count}


def _sections(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    count, name = rng.choice((2, 3)), rng.choice(("Section", "Part"))
    text = f"Divide your answer into {count} sections. Start each with {name} X, such as {name} 1."
    return text, {"section_spliter": name, "num_sections": count}


def _end(rng: random.Random, topic: Topic) -> tuple[str, Kwargs]:
    phrase = rng.choice(END_PHRASES)
    return f'End your answer with the exact phrase "{phrase}" and write nothing after it.', {"end_phrase": phrase}


def _fixed(text: str) -> Draw:
    return lambda rng, topic: (text, {})


CONSTRAINTS: dict[str, Draw] = {
    "keywords:existence": _keyword,
    "keywords:frequency": _keyword_frequency,
    "keywords:forbidden_words": _forbidden_word,
    "keywords:letter_frequency": _letter,
    "length_constraints:number_words": _words,
    "length_constraints:number_paragraphs": _paragraphs,
    "detectable_content:number_placeholders": _placeholders,
    "detectable_content:postscript": _postscript,
    "detectable_format:number_bullet_lists": _bullets,
    "detectable_format:number_highlighted_sections": _highlights,
    "detectable_format:multiple_sections": _sections,
    "detectable_format:title": _fixed("Give it a title in double angular brackets, such as <<my title>>."),
    "startend:end_checker": _end,
    "startend:quotation": _fixed("Put your whole answer in double quotation marks."),
    "change_case:english_lowercase": _fixed("Write everything in lowercase letters, without any capital letters."),
    "change_case:english_capital": _fixed("Write everything in CAPITAL letters."),
    "punctuation:no_comma": _fixed("Do not use any commas."),
}

_CASES = ("change_case:english_lowercase", "change_case:english_capital")
CONFLICTS: frozenset[frozenset[str]] = frozenset(
    frozenset(pair)
    for pair in (
        _CASES,
        ("startend:quotation", "detectable_format:title"),
        # Both want to be the last thing that is said.
        ("startend:end_checker", "detectable_content:postscript"),
        ("startend:end_checker", "startend:quotation"),
        # These show text whose case is not the one asked for.
        *((case, "startend:end_checker") for case in _CASES),
        *((case, "detectable_format:multiple_sections") for case in _CASES),
        ("change_case:english_lowercase", "detectable_content:postscript"),
        # Both lay out the whole answer, or both spend asterisks.
        ("detectable_format:number_bullet_lists", "length_constraints:number_paragraphs"),
        ("detectable_format:number_bullet_lists", "detectable_format:number_highlighted_sections"),
        ("detectable_format:number_highlighted_sections", "length_constraints:number_paragraphs"),
        ("detectable_format:multiple_sections", "length_constraints:number_paragraphs"),
        ("detectable_format:multiple_sections", "detectable_format:number_highlighted_sections"),
    )
)
"""Pairs that one answer cannot, or cannot naturally, fulfil together."""

ATTEMPTS_PER_PROMPT = 200


def compatible(ids: Sequence[str]) -> bool:
    """Whether one answer can fulfil these constraints together."""
    return not any(frozenset(pair) in CONFLICTS for pair in combinations(ids, 2))


def generate(
    size: int, constraints: Sequence[str], min_constraints: int, max_constraints: int, seed: int
) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, instruction_ids, kwargs}`.

    The constraints take turns at coming first, so that each is met about equally often; how many more follow is drawn
    evenly from the range, and which ones from those that are compatible. Raises `TooFewPromptsError` when the topics
    and constraints do not give that many distinct prompts.
    """
    rng = random.Random(seed)  # noqa: S311 (a sample, not a secret)
    seen: set[str] = set()
    for number in range(size):
        first = constraints[number % len(constraints)]
        for _ in range(ATTEMPTS_PER_PROMPT):
            row = _prompt(rng, first, constraints, rng.randint(min_constraints, max_constraints))
            if row is not None and row["prompt"] not in seen:
                break
        else:
            raise TooFewPromptsError(
                f"found {number} distinct prompts of the {size} asked for: allow more constraints than "
                f"{list(constraints)}, a wider range than {min_constraints} to {max_constraints}, or a smaller size"
            )
        seen.add(row["prompt"])
        yield row


def _prompt(rng: random.Random, first: str, constraints: Sequence[str], count: int) -> dict[str, Any] | None:
    """A prompt with `count` constraints, or None where too few are compatible with those already drawn."""
    topic, ids = rng.choice(TOPICS), [first]
    while len(ids) < count:
        fitting = [each for each in constraints if each not in ids and compatible([*ids, each])]
        if not fitting:
            return None
        ids.append(rng.choice(fitting))
    drawn = [CONSTRAINTS[each](rng, topic) for each in ids]
    text = " ".join([topic.task, *(sentence for sentence, _ in drawn)])
    return {
        "prompt": "\n".join(line.strip() for line in text.splitlines()),
        "instruction_ids": ids,
        "kwargs": [kwargs for _, kwargs in drawn],
    }
