"""Generates tiny programming tasks, with assertions computed by a reference implementation.

A family is one kind of function: its text, its signature, a sampler of arguments, and the reference. Each value of a
family's parameter gives another prompt.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tasks.sourcing.generators import TooFewPromptsError

WORDS = ("apple", "Banana", "level", "sky", "Python", "noon", "river", "Alphabet", "kayak", "moon", "tree", "Echo")
PROMPT = "Write a Python function `{signature}` that {task} Answer with the function in one Python code block."

Draw = Callable[[random.Random], tuple[Any, ...]]


@dataclass(frozen=True)
class Family:
    """One kind of function.

    Attributes:
        name: name of the function.
        arguments: its parameters, as written in the signature.
        task: the text that describes it; `{k}` is the family's parameter.
        reference: takes the parameter, then the arguments, and returns the expected result.
        draw: samples the arguments of one call.
        parameters: the values of `k`, one per prompt.
    """

    name: str
    arguments: str
    task: str
    reference: Callable[..., Any]
    draw: Draw
    parameters: Sequence[Any] = (None,)


def _make_integers(count: int, low: int = -20, high: int = 40) -> Draw:
    return lambda rng: tuple(rng.randint(low, high) for _ in range(count))


def _draw_numbers(rng: random.Random) -> tuple[list[int]]:
    return ([rng.randint(-9, 20) for _ in range(rng.randint(1, 6))],)


def _draw_text(rng: random.Random) -> tuple[str]:
    return (" ".join(rng.sample(WORDS, rng.randint(1, 3))),)


def _draw_word(rng: random.Random) -> tuple[str]:
    return (rng.choice(WORDS),)


def _draw_words(rng: random.Random) -> tuple[list[str]]:
    return (rng.sample(WORDS, rng.randint(1, 5)),)


FAMILIES: tuple[Family, ...] = (
    Family("add", "a, b", "returns the sum of a and b.", lambda k, a, b: a + b, _make_integers(2)),
    Family("subtract", "a, b", "returns a minus b.", lambda k, a, b: a - b, _make_integers(2)),
    Family("larger", "a, b", "returns the larger of a and b.", lambda k, a, b: max(a, b), _make_integers(2)),
    Family("add_k", "x", "returns x plus {k}.", lambda k, x: x + k, _make_integers(1), range(1, 21)),
    Family("times_k", "x", "returns x multiplied by {k}.", lambda k, x: x * k, _make_integers(1), range(2, 16)),
    Family("remainder", "x", "returns x modulo {k}.", lambda k, x: x % k, _make_integers(1, 0, 99), range(2, 12)),
    Family("power", "x", "returns x to the power of {k}.", lambda k, x: x**k, _make_integers(1, -5, 9), range(2, 6)),
    Family(
        "is_multiple",
        "x",
        "returns True if x is a multiple of {k}, else False.",
        lambda k, x: x % k == 0,
        _make_integers(1, 0, 30),
        range(2, 10),
    ),
    Family(
        "clamp",
        "x",
        "returns x, but never less than 0 and never more than {k}.",
        lambda k, x: min(max(x, 0), k),
        _make_integers(1),
        range(5, 31, 5),
    ),
    Family(
        "nth_even",
        "n",
        "returns the n-th even number counted from {k}, so that n = 1 gives {k}.",
        lambda k, n: k + 2 * (n - 1),
        _make_integers(1, 1, 30),
        range(0, 11, 2),
    ),
    Family(
        "sum_to",
        "n",
        "returns the sum of all whole numbers from {k} to n, both included.",
        lambda k, n: sum(range(k, n + 1)),
        _make_integers(1, 5, 30),
        range(5),
    ),
    Family(
        "digit_sum",
        "n",
        "returns the sum of the decimal digits of the non-negative integer n.",
        lambda k, n: sum(int(digit) for digit in str(n)),
        _make_integers(1, 0, 9999),
    ),
    Family("reverse", "text", "returns the text reversed.", lambda k, text: text[::-1], _draw_text),
    Family(
        "is_palindrome",
        "word",
        "returns True if the word reads the same backwards, else False.",
        lambda k, word: word == word[::-1],
        _draw_word,
    ),
    Family(
        "count_vowels",
        "text",
        "returns how many vowels (a, e, i, o, u, in either case) the text has.",
        lambda k, text: sum(letter in "aeiou" for letter in text.lower()),
        _draw_text,
    ),
    Family(
        "count_letter",
        "text",
        "returns how often the lowercase letter '{k}' occurs in the text.",
        lambda k, text: text.count(k),
        _draw_text,
        "aeno",
    ),
    Family("repeat", "word", "returns the word repeated {k} times.", lambda k, word: word * k, _draw_word, range(2, 7)),
    Family("first_k", "text", "returns the first {k} characters.", lambda k, text: text[:k], _draw_text, range(1, 6)),
    Family("last_k", "text", "returns the last {k} characters.", lambda k, text: text[-k:], _draw_text, range(1, 6)),
    Family("shout", "text", "returns the text in upper case.", lambda k, text: text.upper(), _draw_text),
    Family(
        "initials",
        "words",
        "returns the first letters of a list of words, joined.",
        lambda k, words: "".join(word[0] for word in words),
        _draw_words,
    ),
    Family(
        "longest",
        "words",
        "returns the length of the longest word in a list of words.",
        lambda k, words: max(len(word) for word in words),
        _draw_words,
    ),
    Family(
        "long_words",
        "words",
        "returns, in their order, the words that have more than {k} letters.",
        lambda k, words: [word for word in words if len(word) > k],
        _draw_words,
        range(3, 6),
    ),
    Family("total", "numbers", "returns the sum of a list of numbers.", lambda k, numbers: sum(numbers), _draw_numbers),
    Family(
        "smallest", "numbers", "returns the smallest of the numbers.", lambda k, numbers: min(numbers), _draw_numbers
    ),
    Family(
        "above",
        "numbers",
        "returns, in their order, the numbers that are greater than {k}.",
        lambda k, numbers: [number for number in numbers if number > k],
        _draw_numbers,
        range(11),
    ),
    Family(
        "every_kth",
        "numbers",
        "returns every {k}th number of a list, beginning with the first.",
        lambda k, numbers: numbers[::k],
        _draw_numbers,
        range(4, 7),
    ),
    Family(
        "descending",
        "numbers",
        "returns the numbers sorted from largest to smallest.",
        lambda k, numbers: sorted(numbers, reverse=True),
        _draw_numbers,
    ),
)


def generate(size: int, tests: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, tests}`, each with `tests` different assertions.

    The families alternate, each with its parameters in a seeded order.

    Raises:
        TooFewPromptsError: the families give fewer distinct prompts.
    """
    rng = random.Random(seed)
    columns = [[(family, k) for k in rng.sample(family.parameters, len(family.parameters))] for family in FAMILIES]
    depth = max(len(column) for column in columns)
    variants = [column[row] for row in range(depth) for column in columns if row < len(column)]
    if size > len(variants):
        raise TooFewPromptsError(f"makes {len(variants)} distinct prompts; {size} were asked for")
    for family, k in variants[:size]:
        signature = f"{family.name}({family.arguments})"
        prompt = PROMPT.format(signature=signature, task=family.task.format(k=k))
        yield {"prompt": prompt, "tests": _make_assertions(rng, family, k, tests)}


def _make_assertions(rng: random.Random, family: Family, k: Any, count: int) -> list[str]:
    """Return `count` different assertions that do not all expect the same value, so that a constant function fails."""
    while True:
        expected: dict[str, str] = {}
        while len(expected) < count:
            arguments = family.draw(rng)
            expected[", ".join(map(repr, arguments))] = repr(family.reference(k, *arguments))
        if len(set(expected.values())) > 1:
            return [f"assert {family.name}({call}) == {result}" for call, result in expected.items()]
