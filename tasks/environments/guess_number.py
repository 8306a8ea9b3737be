"""Plays a number guessing game: the environment answers every guess with higher or lower.

    policy: 50 ──► Lower. ──► policy: 25 ──► Higher. ──► policy: 37 ──► reward 1

With `t` turns, binary search always finds one of `2**t - 1` numbers. A policy that ignores the answers can only find
`t` of them.
"""

from __future__ import annotations

import random
import re
from contextlib import suppress

from tasks.environments.interface import EpisodeOver, Generate, Outcome, Prompt, Turn
from tasks.verifiers.responses import strip_thinking

NEAREST_MISS = 0.5
"""Upper bound of the reward of a miss with `near`; a hit has a reward of 1, so more than twice as much."""
HIGHER, LOWER, NO_GUESS = "Higher.", "Lower.", "Say a number."
"""Answers to a guess below the number, to a guess above it, and to a turn without a guess."""
_GUESS = re.compile(r"(?<![0-9])-?[0-9]{1,15}(?![0-9])")


async def guess_number(prompt: Prompt, generate: Generate, *, low: int, high: int, near: bool = False) -> Outcome:
    """Let the policy guess a number from `low` to `high`, both included, until it hits or has no turn left.

    A guess is the first integer of a turn. The number depends on the prompt and the sample, so the policy cannot
    memorise it.

    Args:
        prompt: the prompt, whose seed determines the number.
        generate: continues the conversation.
        low: smallest possible number.
        high: largest possible number.
        near: True to reward a miss by the distance of the last guess, below `NEAREST_MISS`. This gives a learning
            signal to a policy that hardly ever hits: to guess within the range, and to follow the answers.

    Raises:
        ValueError: If `high` is not above `low`.
    """
    if not low < high:
        raise ValueError(f"guess_number: high is {high}, and must be above low, which is {low}")
    secret = random.Random(prompt.seed).randint(low, high)
    turn = await generate()
    guess = None
    with suppress(EpisodeOver):  # the last guess counts, whatever limit ended the game
        while (guess := find_guess(turn)) != secret and not turn.last:
            turn = await generate(answer_guess(guess, secret))
    if guess == secret:
        return Outcome(1.0, passed=True)
    return Outcome(compute_nearness(guess, secret, high - low) if near else 0.0, passed=False)


def find_guess(turn: Turn) -> int | None:
    """Return the first integer of a turn without its thinking part, or None if there is none."""
    guess = _GUESS.search(strip_thinking(turn.text))
    return int(guess[0]) if guess else None


def answer_guess(guess: int | None, secret: int) -> str:
    """Return the environment's answer to a turn that misses `secret`; `guess` is None if the turn has no guess."""
    if guess is None:
        return NO_GUESS
    return HIGHER if guess < secret else LOWER


def compute_nearness(guess: int | None, secret: int, width: int) -> float:
    """Return the reward of a last guess that missed; it decreases linearly with the distance, to 0 at `width`."""
    return 0.0 if guess is None else NEAREST_MISS * max(0.0, 1 - abs(guess - secret) / width)
