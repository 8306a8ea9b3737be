"""Computes words, sentences, tokens and language of a response for the checkers, with a cache.

A prompt has up to five constraints, and loose mode up to eight variants of a response. A result that several checkers
need for the same text is computed once. All functions are pure, so caching does not change results.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

import langdetect
import nltk
from nltk.tag.perceptron import PerceptronTagger

from tasks.verifiers.instructions import package

CACHED_TEXTS = 16
"""Number of texts whose results are cached, per function."""

langdetect.DetectorFactory.seed = 0  # it samples n-grams; unseeded, one response can score 1 and then 0

_util = package.load("if_verifiable.ifeval.instructions_util")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


@lru_cache(CACHED_TEXTS)
def words(text: str) -> tuple[str, ...]:
    """Return the words of a text in lower case, without punctuation; `well-known` and `don't` are one word each."""
    return tuple(_WORD.findall(text.lower()))


@lru_cache(CACHED_TEXTS)
def cased_words(text: str) -> tuple[str, ...]:
    """Return the words of a text like `words`, but with their case unchanged."""
    return tuple(_WORD.findall(text))


def count_occurrences(text: str, word: str) -> int:
    """Count how often a word or phrase occurs in a text as whole words, in either case."""
    return len(re.findall(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE))


@lru_cache(CACHED_TEXTS)
def split_published_sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences by IFEval's rules; some may be empty."""
    return tuple(_util.split_into_sentences(text))


def split_sentences(text: str) -> list[str]:
    """Return the sentences of a text by the published rules, without sentences that contain no word."""
    return [each for each in split_published_sentences(text) if words(each)]


@lru_cache(CACHED_TEXTS)
def split_nltk_sentences(text: str) -> tuple[str, ...]:
    """Split a text into sentences with NLTK's punkt, as IFBench does now; requires its data."""
    return tuple(nltk.sent_tokenize(text))


@lru_cache(CACHED_TEXTS)
def count_sentences(text: str) -> int:
    """Return the number of sentences with NLTK's punkt, as in IFEval; requires its data."""
    return _util.count_sentences(text)


@lru_cache(CACHED_TEXTS)
def tokens(text: str) -> tuple[str, ...]:
    """Return NLTK's tokens of a text, including punctuation; requires punkt's data."""
    return tuple(nltk.word_tokenize(text))


def starts_with_verb(text: str) -> bool:
    """Return True if NLTK tags the first token of a text as a verb; requires punkt's and the tagger's data.

    The tagger works from left to right and looks two tokens ahead, so three tokens determine the tag of the first.
    """
    first = list(tokens(text)[:3])
    return bool(first) and "VB" in _load_tagger().tag(first)[0][1]


@lru_cache(1)
def _load_tagger() -> PerceptronTagger:
    return PerceptronTagger()


@lru_cache(CACHED_TEXTS)
def count_words(text: str) -> int:
    """Return the number of runs of word characters, which IFEval and IFBench count as words."""
    return _util.count_words(text)


def count_stop_words(text: str) -> int:
    """Count the English stop words among the runs of word characters; requires NLTK's list."""
    stop_words = _stop_words()
    return sum(each.lower() in stop_words for each in re.findall(r"\w+", text))


@lru_cache(1)
def _stop_words() -> frozenset[str]:
    return frozenset(nltk.corpus.stopwords.words("english"))


@lru_cache(CACHED_TEXTS)
def count_letters(text: str) -> Counter[str]:
    """Count how often each character occurs, in lower case."""
    return Counter(text.lower())


@lru_cache(CACHED_TEXTS)
def detect_language(text: str) -> str | None:
    """Return the ISO 639-1 code of a text's likeliest language, or None if it cannot be identified."""
    try:
        return langdetect.detect(text)
    except langdetect.LangDetectException:
        return None
