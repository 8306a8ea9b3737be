"""Provides the text that models are checked on, and cuts sequences from it."""

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
"""Text with prose, mathematics, code, JSON and several scripts."""
PROMPT = 4
"""Number of tokens of a sequence that are not predicted."""
STRIDE = 37
"""Number of tokens between the starts of two sequences. It is prime, so that the starts are distributed over the
text."""


def tokenize_text(folder: Path) -> list[int]:
    """Return the tokens of `TEXT` by the tokenizer in a model folder, without special tokens around it."""
    from transformers import AutoTokenizer

    tokens: list[int] = AutoTokenizer.from_pretrained(folder).encode(TEXT, add_special_tokens=False)
    return tokens


def cut(tokens: Sequence[int], length: int, start: int = 0) -> TokenSequence:
    """Return `length` tokens, at least two, from index `start` on; the text repeats at its end.

    The first `PROMPT` tokens are the prompt, or fewer if no token would be left to predict.
    """
    ids = [tokens[(start + index) % len(tokens)] for index in range(max(length, 2))]
    prompt = min(PROMPT, len(ids) - 1)
    return TokenSequence(ids[:prompt], ids[prompt:], [0.0] * (len(ids) - prompt), 1.0)


def make_cuttings(tokens: Sequence[int], lengths: Sequence[int], total: int) -> list[TokenSequence]:
    """Return sequences that cycle through these lengths, with at least `total` predicted tokens in total."""
    sequences: list[TokenSequence] = []
    for number, length in enumerate(itertools.cycle(lengths)):
        if sum(len(sequence.response_ids) for sequence in sequences) >= total:
            break
        sequences.append(cut(tokens, length, number * STRIDE))
    return sequences
