"""Contains the topics of the generators: short tasks, each with four words that an answer is likely to use.

The words feed the keyword constraints. They are separate lowercase words, and no word is part of another of its topic.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tasks.sourcing.generators import TooFewPromptsError


class Topic(NamedTuple):
    """A short task, and four words that an answer is likely to use."""

    task: str
    words: tuple[str, str, str, str]


FILE = Path(__file__).with_suffix(".txt")
"""A line for each topic: the task, a bar, and the words."""


def _parse(line: str) -> Topic:
    task, words = line.split("|")
    first, second, third, fourth = words.split()
    return Topic(task, (first, second, third, fourth))


TOPICS: tuple[Topic, ...] = tuple(_parse(line) for line in FILE.read_text().splitlines())


def generate(size: int, seed: int) -> Iterator[dict[str, Any]]:
    """Yield `size` distinct rows `{prompt}`, which are topics without constraints.

    Raises:
        TooFewPromptsError: there are fewer topics than `size`.
    """
    if size > len(TOPICS):
        raise TooFewPromptsError(f"there are {len(TOPICS)} topics; {size} were asked for")
    for topic in random.Random(seed).sample(TOPICS, size):
        yield {"prompt": topic.task}
