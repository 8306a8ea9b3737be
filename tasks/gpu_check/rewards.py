"""The reward of the runs of `make gpu-check`: it varies between the responses of a model with random weights."""

from __future__ import annotations

from typing import Any


def share_of_ones(completions: list[list[dict[str, str]]], **columns: Any) -> list[float | None]:
    """Return for each completion the share of the digit 1 among its digits, which are the numbers of its words."""
    digits = [[letter for letter in completion[0]["content"] if letter.isdigit()] for completion in completions]
    return [own.count("1") / len(own) if own else 0.0 for own in digits]
