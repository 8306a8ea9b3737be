"""Generates prompts for guessing a number. Each names a different range and asks for a guess.

The environment (`guess_number`) samples the number itself, again for each sample. Example games in a prompt use other
ranges and the wording of that environment:

    user: Guess my number from 11 to 17. ──► 14 ──► Higher. ──► 16 ──► Right. Guess my number from 5 to 11. ──► ?
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from tasks.environments.guess_number import answer_guess
from tasks.sourcing.generators import TooFewPromptsError
from tasks.tables.schemas import Message

HIT = "Right."
"""Answer to the guess that ends an example. The environment itself returns a reward and no text."""


def generate(size: int, numbers: int, highest: int, seed: int, examples: int = 0) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, low, high}`.

    Args:
        size: number of rows.
        numbers: size of each range, at least 2.
        highest: largest number of any range; the smallest is 1.
        seed: seed of the ranges and the examples.
        examples: number of example games with other ranges that precede the question of a row, less than the number of
            ranges. `prompt` is a list of messages if it is positive, and text otherwise.

    Raises:
        TooFewPromptsError: there are fewer ranges than `size`.
    """
    lows = range(1, highest - numbers + 2)
    if size > len(lows):
        raise TooFewPromptsError(f"there are {len(lows)} ranges of {numbers} numbers up to {highest}, not {size}")
    chance = random.Random(seed)
    for low in chance.sample(lows, size):
        prompt: str | list[Message] = _format_question(low, numbers)
        if examples:
            others = chance.sample(range(1, len(lows)), examples)
            prompt = _make_conversation([*(other + (other >= low) for other in others), low], numbers, chance)
        yield {"prompt": prompt, "low": low, "high": low + numbers - 1}


def _format_question(low: int, numbers: int) -> str:
    return f"Guess my number from {low} to {low + numbers - 1}. Say only a number."


def _make_conversation(lows: list[int], numbers: int, chance: random.Random) -> list[Message]:
    """Return the messages of a finished game for each range but the last, and the question of the last range."""
    messages = [{"role": "user", "content": _format_question(lows[0], numbers)}]
    for low, following in itertools.pairwise(lows):
        for guess, answer in _play_game(low, low + numbers - 1, chance):
            messages.append({"role": "assistant", "content": str(guess)})
            messages.append({"role": "user", "content": answer})
        messages[-1]["content"] += f" {_format_question(following, numbers)}"
    return messages


def _play_game(low: int, high: int, chance: random.Random) -> Iterator[tuple[int, str]]:
    """Yield the guesses and their answers until a hit, bisecting the range.

    The number is never the first guess, so that every game shows an answer and how it is used.
    """
    guess = (low + high) // 2
    secret = chance.randrange(low, high)
    secret += secret >= guess
    while guess != secret:
        yield guess, answer_guess(guess, secret)
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)
        guess = (low + high) // 2
    yield guess, HIT
