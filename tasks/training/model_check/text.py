"""The text that models are checked on, and the sequences that are cut from it."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from tasks.training.learner.packing import Sequence as TokenSequence

TEXT = """Question: A train leaves at 9:40 and arrives at 12:05. How long does it take? Answer: \\boxed{145} minutes.
def mean(values: list[float]) -> float:
    return sum(values) / len(values)
{"city": "Zürich", "population": 443037} Wie spät ist es? Il est déjà midi. 你好, 世界! Что это такое?
First, let x = 7 and y = -3. Then 2x + y^2 = 14 + 9 = 23, so the answer is 23. <think>Wait, is that right?</think>
"""
"""Text whose tokens models are checked on: prose, mathematics, code, JSON, several scripts."""
PROMPT = 4
"""Tokens of a sequence that are not predicted."""
STRIDE = 37
"""Tokens between the beginnings of two cuttings; prime, so that they begin anywhere in the text."""


def text_tokens(folder: Path) -> list[int]:
    """Return the tokens of `TEXT` by the tokenizer in a model folder, without special tokens around it."""
    from transformers import AutoTokenizer

    tokens: list[int] = AutoTokenizer.from_pretrained(folder).encode(TEXT, add_special_tokens=False)
    return tokens


def cut(tokens: Sequence[int], length: int, start: int = 0) -> TokenSequence:
    """Return `length` tokens from `start` on, of which the first `PROMPT` are not predicted; a short text repeats."""
    ids = [tokens[(start + index) % len(tokens)] for index in range(length)]
    return TokenSequence(ids[:PROMPT], ids[PROMPT:], [0.0] * (len(ids) - PROMPT), 1.0)


def cuttings(tokens: Sequence[int], lengths: Sequence[int], total: int, start: int = 0) -> list[TokenSequence]:
    """Return sequences of these lengths, in turn, that begin at different places, until they predict `total` tokens.

    Args:
        tokens: of a text.
        lengths: tokens of the sequences, each above `PROMPT`.
        total: predicted tokens of all of them.
        start: index in the text at which the first begins.
    """
    sequences: list[TokenSequence] = []
    predicted = 0
    for number, length in enumerate(itertools.cycle(lengths)):
        if predicted >= total:
            return sequences
        sequences.append(cut(tokens, length, start + number * STRIDE))
        predicted += length - PROMPT
    return sequences
