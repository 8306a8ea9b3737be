"""What the checkers read beside the response: found before work starts, never downloaded."""

from __future__ import annotations

import importlib.util
from functools import cache

PUNKT = "tokenizers/punkt_tab/english"
TAGGER = "taggers/averaged_perceptron_tagger_eng/averaged_perceptron_tagger_eng.weights.json"
STOP_WORDS = "corpora/stopwords/english"

NLTK_NEEDS: dict[str, tuple[str, ...]] = {
    "change_case:capital_word_frequency": (PUNKT,),
    "format:title_case": (PUNKT,),
    "length_constraints:number_sentences": (PUNKT,),
    "ratio:stop_words": (STOP_WORDS,),
    "words:keywords_specific_position": (PUNKT,),
    "words:start_verb": (PUNKT, TAGGER),
    "words:words_position": (PUNKT,),
}
"""The constraints that read NLTK data, and which; it is looked for where `NLTK_DATA` points."""

PACKAGES = ("if_verifiable", "nltk", "langdetect", "emoji", "syllapy")
"""What the checkers import: the published ones, sentences and tags, languages, emoji, syllables."""


def missing(name: str) -> list[str]:
    """What a constraint's checker needs and this machine lacks, each in a sentence that says what to do."""
    packages = [f"{name} needs the Python package {each}" for each in PACKAGES if not _installed(each)]
    if packages:
        return packages
    return [
        f"{name} needs the NLTK resource {each}: set NLTK_DATA to a folder that holds it"
        for each in NLTK_NEEDS.get(name, ())
        if not found(each)
    ]


def found(resource: str) -> bool:
    """Whether NLTK finds a resource; what was found once on the same search path stays found."""
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
def _installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
