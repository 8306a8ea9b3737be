"""The game of guessing a number: a small program knows it, and answers every guess with higher or lower.

    policy: 50 ──► Lower. ──► policy: 25 ──► Higher. ──► policy: 37 ──► reward 1

With `t` turns, halving the range each time finds one of `2**t - 1` numbers for certain, and a policy that ignores the
answers finds it in `t` of them.
"""

from __future__ import annotations

import random
import re

from tasks.environments.interface import Generate, Outcome, Prompt, Turn
from tasks.verifiers.responses import strip_thinking

NEAREST_MISS = 0.5
"""Reward that a miss stays below, with `near`: any hit is worth more than twice any miss."""
HIGHER, LOWER, NO_GUESS = "Higher.", "Lower.", "Say a number."
"""Answers to a guess below the number, to one above it, and to a turn without a guess."""
_GUESS = re.compile(r"(?<![0-9])-?[0-9]{1,15}(?![0-9])")


async def guess_number(prompt: Prompt, generate: Generate, *, low: int, high: int, near: bool = False) -> Outcome:
    """Let the policy guess a number from `low` to `high`, both included, until it hits or has no turn left.

    A guess is the first integer of a turn. The number depends on the prompt and the sample, so that no answer can be
    learned by heart.

    Args:
        prompt: its seed draws the number.
        generate: continues the conversation.
        low: the smallest number that it may be.
        high: the largest.
        near: True to reward a miss by how near the last guess came, below `NEAREST_MISS`. A policy that hardly ever
            hits then has something to learn from: that a guess lies in the range, and moves the way it was told.

    Raises:
        ValueError: `high` is not above `low`.
    """
    if not low < high:
        raise ValueError(f"guess_number: high is {high}, and must be above low, which is {low}")
    secret = random.Random(prompt.seed).randint(low, high)
    turn = await generate()
    while (guess := guess_in(turn)) != secret and not turn.last:
        turn = await generate(answer_to(guess, secret))
    if guess == secret:
        return Outcome(1.0, passed=True)
    return Outcome(nearness(guess, secret, high - low) if near else 0.0, passed=False)


def guess_in(turn: Turn) -> int | None:
    """Return the first integer of a turn, its thinking part left out; None without one."""
    guess = _GUESS.search(strip_thinking(turn.text))
    return int(guess[0]) if guess else None


def answer_to(guess: int | None, secret: int) -> str:
    """Return the answer of the environment to a turn that misses `secret`; None for a turn without a guess."""
    if guess is None:
        return NO_GUESS
    return HIGHER if guess < secret else LOWER


def nearness(guess: int | None, secret: int, width: int) -> float:
    """Return the reward of a last guess that missed: it falls with the distance, and is 0 from `width` on."""
    return 0.0 if guess is None else NEAREST_MISS * max(0.0, 1 - abs(guess - secret) / width)
