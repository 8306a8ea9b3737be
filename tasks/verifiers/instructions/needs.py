"""Finds missing packages and NLTK data of the checkers before work starts; nothing is ever downloaded."""

from __future__ import annotations

import importlib.util
from functools import cache

from tasks.verifiers.instructions.arguments import TABLES

PUNKT = "tokenizers/punkt_tab/english"
"""NLTK resource of the sentence and word tokenizer."""
TAGGER = "taggers/averaged_perceptron_tagger_eng/averaged_perceptron_tagger_eng.weights.json"
"""NLTK resource of the part-of-speech tagger."""
STOP_WORDS = "corpora/stopwords/english"
"""NLTK resource of the list of English stop words."""

_RESOURCES = {"punkt": PUNKT, "tagger": TAGGER, "stop words": STOP_WORDS}
NLTK_NEEDS: dict[str, tuple[str, ...]] = {
    name: tuple(_RESOURCES[short] for short in used) for name, used in TABLES["nltk"].items()
}
"""NLTK resources by the constraint that uses them; NLTK searches the path in `NLTK_DATA`."""

PACKAGES = ("if_verifiable", "nltk", "langdetect", "emoji", "syllapy")
"""Packages that the checkers import: published checkers, sentences and tags, languages, emoji, syllables."""


def find_missing(name: str) -> list[str]:
    """Return a message with a remedy for each package or resource that a checker needs and this machine lacks."""
    packages = [f"{name} needs the Python package {each}" for each in PACKAGES if not _is_installed(each)]
    if packages:
        return packages
    return [
        f"{name} needs the NLTK resource {each}: python -m images.nltk_data installs it (NLTK_DATA names other folders)"
        for each in NLTK_NEEDS.get(name, ())
        if not has_data(each)
    ]


def find_available() -> list[str]:
    """Return the NLTK resources and packages of the checkers that this machine has."""
    resources = sorted({resource for named in NLTK_NEEDS.values() for resource in named})
    packages = [package for package in PACKAGES if _is_installed(package)]
    return packages + ([resource for resource in resources if has_data(resource)] if "nltk" in packages else [])


def has_data(resource: str) -> bool:
    """Return True if NLTK finds a resource. A resource that was found is cached by search path."""
    import nltk

    key = (resource, *map(str, nltk.data.path))
    if key not in _seen:
        try:
            nltk.data.find(resource)
        except LookupError:
            return False
        _seen.add(key)
    return True


_seen: set[tuple[str, ...]] = set()


@cache
def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
