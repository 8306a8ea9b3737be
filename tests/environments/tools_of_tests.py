"""Functions that a policy may call, as a user would write them."""

from typing import Literal


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
