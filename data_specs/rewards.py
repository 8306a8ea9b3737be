"""Reward functions of the quickstart, and a pattern for your own: TRL's signature, named in a data spec."""

from __future__ import annotations

from typing import Any

SENTENCE_ENDS = (".", "!", "?", '."', '!"', '?"')


def finished(completions: list[list[dict[str, str]]], **columns: Any) -> list[float | None]:
    """Return 1 for a completion that ends with a sentence's end, 0 for one that the length limit cut."""
    return [float(completion[0]["content"].rstrip().endswith(SENTENCE_ENDS)) for completion in completions]


def thought_and_answer(completions: list[list[dict[str, str]]], **columns: Any) -> list[float | None]:
    """Return 1 for a completion with <think> and <answer> tags, opened and closed; Axolotl's `format_reward`."""
    tags = ("<think>", "</think>", "<answer>", "</answer>")
    return [float(all(tag in completion[0]["content"] for tag in tags)) for completion in completions]
