"""The generator of prompts for guessing a number: each names another range, and asks for a guess.

The number itself is drawn by the environment (`guess_number`), anew for each sample.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

from tasks.sourcing.generators import TooFewPromptsError


def generate(size: int, numbers: int, highest: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt, low, high}`.

    Args:
        size: number of rows.
        numbers: numbers in each range.
        highest: number that no range goes beyond; the lowest is 1.
        seed: draws the ranges.

    Raises:
        TooFewPromptsError: there are fewer ranges than `size`.
    """
    lows = range(1, highest - numbers + 2)
    if size > len(lows):
        raise TooFewPromptsError(f"there are {len(lows)} ranges of {numbers} numbers up to {highest}, not {size}")
    for low in random.Random(seed).sample(lows, size):
        high = low + numbers - 1
        yield {"prompt": f"Guess my number from {low} to {high}. Say only a number.", "low": low, "high": high}
