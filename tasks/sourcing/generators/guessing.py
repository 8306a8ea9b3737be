"""The generator of prompts for guessing a number: each names another range, and asks for a guess.

The number itself is drawn by the environment (`guess_number`), anew for each sample. Games that stand in a prompt as
examples are of other ranges, and answered in that environment's words:

    user: Guess my number from 11 to 17. ──► 14 ──► Higher. ──► 16 ──► Right. Guess my number from 5 to 11. ──► ?
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from typing import Any

from tasks.environments.guess_number import answer_to
from tasks.sourcing.generators import TooFewPromptsError
from tasks.tables.schemas import Message

HIT = "Right."
"""Answer to the guess that ends an example. The environment itself gives a reward, and says nothing."""


def generate(size: int, numbers: int, highest: int, seed: int, examples: int = 0) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, low, high}`.

    Args:
        size: number of rows.
        numbers: numbers in each range, 2 at least.
        highest: number that no range goes beyond; the lowest is 1.
        seed: draws the ranges, and then the examples.
        examples: games of other ranges that stand before the question of a row, fewer than there are ranges; with one
            or more, `prompt` is a list of messages, and a text without.

    Raises:
        TooFewPromptsError: there are fewer ranges than `size`.
    """
    lows = range(1, highest - numbers + 2)
    if size > len(lows):
        raise TooFewPromptsError(f"there are {len(lows)} ranges of {numbers} numbers up to {highest}, not {size}")
    chance = random.Random(seed)
    for low in chance.sample(lows, size):
        prompt: str | list[Message] = _question(low, numbers)
        if examples:
            others = chance.sample(range(1, len(lows)), examples)
            prompt = _conversation([*(other + (other >= low) for other in others), low], numbers, chance)
        yield {"prompt": prompt, "low": low, "high": low + numbers - 1}


def _question(low: int, numbers: int) -> str:
    return f"Guess my number from {low} to {low + numbers - 1}. Say only a number."


def _conversation(lows: list[int], numbers: int, chance: random.Random) -> list[Message]:
    """Return a finished game in each of the ranges but the last, whose question ends the conversation."""
    messages = [{"role": "user", "content": _question(lows[0], numbers)}]
    for low, following in itertools.pairwise(lows):
        for guess, answer in _game(low, low + numbers - 1, chance):
            messages.append({"role": "assistant", "content": str(guess)})
            messages.append({"role": "user", "content": answer})
        messages[-1]["content"] += f" {_question(following, numbers)}"
    return messages


def _game(low: int, high: int, chance: random.Random) -> Iterator[tuple[int, str]]:
    """Yield the guesses and their answers up to a hit, by halving what is left of the range.

    The number is any but the one that is guessed first, so that every game shows an answer and its use.
    """
    guess = (low + high) // 2
    secret = chance.randrange(low, high)
    secret += secret >= guess
    while guess != secret:
        yield guess, answer_to(guess, secret)
        low, high = (guess + 1, high) if guess < secret else (low, guess - 1)
        guess = (low + high) // 2
    yield guess, HIT
