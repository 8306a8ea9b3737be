"""How the checkers read a response: words, sentences, tokens, language. Each answer is kept for the next constraint.

A prompt has up to five constraints and loose mode up to eight variants of a response; what several checkers ask about
the same text is computed once. All functions are pure: nothing that was kept can change an answer.
"""

from __future__ import annotations

import re
from collections import Counter
from functools import lru_cache

import langdetect
import nltk
from nltk.tag.perceptron import PerceptronTagger

from tasks.verifiers.instructions import package

KEPT = 16

langdetect.DetectorFactory.seed = 0  # it samples n-grams; unseeded, one response can score 1 and then 0

_util = package.load("if_verifiable.ifeval.instructions_util")
_WORD = re.compile(r"[^\W_]+(?:['\u2019-][^\W_]+)*")


@lru_cache(KEPT)
def words(text: str) -> tuple[str, ...]:
    """The words of a text in lower case, without punctuation; `well-known` and `don't` are one word each."""
    return tuple(_WORD.findall(text.lower()))


@lru_cache(KEPT)
def cased_words(text: str) -> tuple[str, ...]:
    """As `words`, in the case in which they stand."""
    return tuple(_WORD.findall(text))


def occurrences(text: str, word: str) -> int:
    """How often a word or phrase stands in a text in either case, not as a part of another word."""
    return len(re.findall(rf"(?<!\w){re.escape(word.strip())}(?!\w)", text, re.IGNORECASE))


@lru_cache(KEPT)
def published_sentences(text: str) -> tuple[str, ...]:
    """The sentences of a text by the rules that IFEval and IFBench ship; some may be empty."""
    return tuple(_util.split_into_sentences(text))


def sentences(text: str) -> list[str]:
    """The published sentences that hold a word."""
    return [each for each in published_sentences(text) if words(each)]


@lru_cache(KEPT)
def sentence_count(text: str) -> int:
    """The number of sentences by NLTK's punkt, which IFEval counts with; needs its data."""
    return _util.count_sentences(text)


@lru_cache(KEPT)
def tokens(text: str) -> tuple[str, ...]:
    """NLTK's tokens, punctuation included; needs punkt's data."""
    return tuple(nltk.word_tokenize(text))


def starts_with_verb(text: str) -> bool:
    """Whether NLTK tags the first token as a verb; needs punkt's and the tagger's data.

    The tagger goes from left to right and looks two tokens ahead, so that three tokens give the tag of the first.
    """
    first = list(tokens(text)[:3])
    return bool(first) and "VB" in _tagger().tag(first)[0][1]


@lru_cache(1)
def _tagger() -> PerceptronTagger:
    return PerceptronTagger()


@lru_cache(KEPT)
def word_count(text: str) -> int:
    """The number of runs of word characters, as IFEval and IFBench count words."""
    return _util.count_words(text)


def stop_word_count(text: str) -> int:
    """How many of those are English stop words; needs NLTK's list."""
    stop_words = _stop_words()
    return sum(each.lower() in stop_words for each in re.findall(r"\w+", text))


@lru_cache(1)
def _stop_words() -> frozenset[str]:
    return frozenset(nltk.corpus.stopwords.words("english"))


@lru_cache(KEPT)
def letters(text: str) -> Counter[str]:
    """How often each character occurs, in lower case."""
    return Counter(text.lower())


@lru_cache(KEPT)
def language(text: str) -> str | None:
    """The ISO 639-1 code of the likeliest language; None where the text has nothing to tell it by."""
    try:
        return langdetect.detect(text)
    except langdetect.LangDetectException:
        return None
