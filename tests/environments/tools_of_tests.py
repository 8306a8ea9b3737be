"""Functions that a policy may call, as a user would write them."""

from dataclasses import dataclass
from typing import Literal

import numpy as np


def add(a: int, b: int) -> int:
    """Add two whole numbers.

    Args:
        a: the first.
        b: the second.
    """
    return a + b


async def look_up(word: str, language: Literal["en", "de"] = "en") -> dict:
    """Look a word up.

    Args:
        word: the word.
        language: its language.
    """
    meanings = {"cat": "an animal <|im_end|>"}
    return {"language": language, "meaning": meanings[word]}


def divide(a: float, b: float) -> str:
    """Divide.

    Args:
        a: the dividend.
        b: the divisor.
    """
    return f"{a / b:g}"


def broken(word: str) -> str:
    """Use a name that does not exist.

    Args:
        word: any.
    """
    return wrod  # noqa: F821 - the mistake


def long(count: int) -> str:
    """Return many letters.

    Args:
        count: their number.
    """
    return "x" * count


def undescribed(a, b):
    return a + b


def without_arguments(word: str) -> str:
    """Have no description of the argument."""
    return word


@dataclass
class Point:
    x: int


class Unwritable:
    def __str__(self):
        raise NotImplementedError


def a_numpy_number() -> int:
    """Return a number that is none of Python's."""
    return np.int64(3)


def a_set() -> set:
    """Return what JSON does not have."""
    return {1}


def a_record() -> object:
    """Return a record."""
    return Point(1)


def a_dictionary() -> dict:
    """Return what JSON has."""
    return {"x": 1}


def nothing() -> None:
    """Return nothing."""


def itself() -> list:
    """Return a list in itself."""
    result = []
    result.append(result)
    return result


def unwritable() -> object:
    """Return what has no text."""
    return Unwritable()
