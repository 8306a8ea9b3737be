"""Our own checks of IFBench, for the constraints that the package draws at random, makes slow or fails in.

Each docstring states the constraint as its prompt does. Everywhere else, and wherever no difference is stated, the
result is the package's: the tests compare the two.
"""

from __future__ import annotations

import csv
import string
from collections.abc import Callable

from tasks.verifiers.instructions import published, texts

_NO_QUOTES = string.digits + string.punctuation.replace('"', "")


def repeat_span(response: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Check the constraint: Copy the words of the prompt from index {n_start} up to, without, {n_end}.

    The published prompt speaks of character indices, and means words. The package draws a start where it is 0.
    """
    return response.lower().split() == prompt_to_repeat.lower().split()[n_start:n_end]


def start_verb(response: str) -> bool:
    """Check the constraint: The response must start with a verb.

    The tagger is loaded once; the published checker loads it twice for every response.
    """
    return texts.starts_with_verb(response)


def quote_unquote(response: str) -> bool:
    """Check the constraint: Every quoted phrase must be followed by an unquoted explanation.

    The package fails where there is nothing but digits and punctuation without quotes; nothing is quoted there.
    """
    text = response.replace("“", '"').replace("”", '"').replace("'\"'", "")
    text = "".join(text.split())
    return '""' not in text and not text.strip(_NO_QUOTES).endswith('"')


def sentence_alphabet(response: str) -> bool:
    """Check the constraint: Tell a story of 26 sentences whose first words start with a to z, in order.

    The package fails where a sentence is empty; that one starts with nothing.
    """
    sentences = texts.published_sentences(response)
    return len(sentences) == 26 and all(
        each.split()[0].lower()[0] == letter if each.split() else False
        for each, letter in zip(sentences, string.ascii_lowercase, strict=True)
    )


def table(name: str) -> Callable[[str], bool]:
    """Return the check of a constraint that asks for a table.

    The package fails at an empty field and at csv's own limits; such a response holds no table.
    """

    def check(response: str) -> bool:
        try:
            return published.check(name, {})(response)
        except (csv.Error, IndexError):
            return False

    return check


_TABLES = ("custom:csv_city", "custom:csv_quotes", "custom:csv_special_character")

CHECKS: dict[str, Callable[..., bool]] = {
    **{name: table(name) for name in _TABLES},
    "custom:sentence_alphabet": sentence_alphabet,
    "format:quote_unquote": quote_unquote,
    "repeat:repeat_span": repeat_span,
    "words:start_verb": start_verb,
}
"""The checks of this module by the id of the constraint."""
