"""Implements IFBench checks that the published package does not do well: random arguments, slowness or errors.

This includes the checks that AI2 has fixed since the package was released (https://github.com/allenai/IFBench, August
2026): names, keywords and pronouns are whole words in either case, and positions count words, not punctuation.
Sentences are split by NLTK, as in the package (`published`). Each docstring states the constraint as its prompt does.
Unless a difference is stated, the result equals the package's; the tests compare the two.
"""

from __future__ import annotations

import csv
import re
import string
from collections.abc import Callable
from functools import cache

from tasks.verifiers.instructions import published, texts

_NO_QUOTES = string.digits + string.punctuation.replace('"', "")


_PRONOUN_LIST = """i me my mine myself we us our ours ourselves you your yours yourself yourselves he him his himself
she her hers herself it its itself they them their theirs themselves this that these those who whom whose which what
whoever whomever whatever whichever anybody anyone anything everybody everyone everything nobody nothing somebody
someone something each either neither both all some any none"""
_PRONOUNS = frozenset(_PRONOUN_LIST.split())


def person_names(response: str, N: int) -> bool:  # noqa: N803 - the argument's name in IFBench's prompts
    """Check the constraint: Mention at least {N} different person names in the response, from a list of fifty."""
    return sum(re.search(rf"\b{name}\b", response) is not None for name in _load_person_names()) >= N


@cache
def _load_person_names() -> tuple[str, ...]:
    _, _, names = published.REGISTRY["count:person_names"]("names").build_description(N=1).rpartition(": ")
    return tuple(re.findall(r"\w+", names))


def pronouns(response: str, N: int) -> bool:  # noqa: N803
    """Check the constraint: The response should include at least {N} pronouns, of any kind."""
    return sum(token in _PRONOUNS for token in texts.tokens(response.replace("/", " ").lower())) >= N


def keyword_in_sentence(response: str, word: str, N: int) -> bool:  # noqa: N803
    """Check the constraint: The response must include keyword {word} in the {N}-th sentence."""
    sentences = texts.split_nltk_sentences(response)
    return 1 <= N <= len(sentences) and texts.count_occurrences(sentences[N - 1], word) > 0


def keyword_at_position(response: str, keyword: str, n: int, m: int) -> bool:
    """Check the constraint: Include keyword {keyword} in the {n}-th sentence, as the {m}-th word of that sentence."""
    sentences = texts.split_nltk_sentences(response)
    words = _tokenize_words(sentences[n - 1]) if 1 <= n <= len(sentences) else []
    return 1 <= m <= len(words) and words[m - 1].lower() == keyword.strip().lower()


def word_positions(response: str, keyword: str) -> bool:
    """Check the constraint: The second word in your response and the second to last one should be {keyword}."""
    words = _tokenize_words(response)
    return len(words) > 1 and words[1].lower() == words[-2].lower() == keyword.strip().lower()


def _tokenize_words(text: str) -> list[str]:
    return [token for token in texts.tokens(text) if any(map(str.isalnum, token))]


def title_case(response: str) -> bool:
    """Check the constraint: Write the entire response in title case (capitalize each major word's first letter).

    A word fails if it is all in lower case, or has a lowercase first letter followed by capitals: a, the, iPAD.
    """
    words = [token for token in texts.tokens(response) if token[0].isalpha()]
    return not any(word[0].islower() and (len(word) == 1 or word[1:].islower() or word[1:].isupper()) for word in words)


def repeat_span(response: str, prompt_to_repeat: str, n_start: int, n_end: int) -> bool:
    """Check the constraint: Copy the span of words between (and including) index {n_start} and {n_end}.

    The indices are word indices. The package omits the last word, and samples a random start if the start is 0.
    """
    return response.lower().split() == prompt_to_repeat.lower().split()[n_start : n_end + 1]


def quote_unquote(response: str) -> bool:
    """Check the constraint: Every quoted phrase must be followed by an unquoted explanation.

    The package fails if the response is only digits and punctuation without quotes. Here it passes: nothing is quoted.
    """
    text = response.replace("“", '"').replace("”", '"').replace("'\"'", "")
    text = "".join(text.split())
    return '""' not in text and not text.strip(_NO_QUOTES).endswith('"')


def sentence_alphabet(response: str) -> bool:
    """Check the constraint: Tell a story of 26 sentences whose first words start with a to z, in order.

    Punctuation such as quotation marks may precede the letter.
    """
    first = [
        sentence.lstrip(string.punctuation + string.whitespace)[:1] for sentence in texts.split_nltk_sentences(response)
    ]
    return "".join(first).lower() == string.ascii_lowercase and len(first) == 26


def make_table_check(name: str) -> Callable[[str], bool]:
    """Return the check of a constraint that requires a table.

    The package raises at an empty field and at the limits of Python's csv module; here such a response fails the check.
    """

    def check(response: str) -> bool:
        try:
            return published.check(name, {})(response)
        except (csv.Error, IndexError):
            return False

    return check


_TABLES = ("custom:csv_city", "custom:csv_quotes", "custom:csv_special_character")

CHECKS: dict[str, Callable[..., bool]] = {
    **{name: make_table_check(name) for name in _TABLES},
    "count:person_names": person_names,
    "count:pronouns": pronouns,
    "custom:sentence_alphabet": sentence_alphabet,
    "format:quote_unquote": quote_unquote,
    "format:title_case": title_case,
    "repeat:repeat_span": repeat_span,
    "sentence:keyword": keyword_in_sentence,
    "words:keywords_specific_position": keyword_at_position,
    "words:start_verb": texts.starts_with_verb,  # its tagger is loaded once, the package's twice for each response
    "words:words_position": word_positions,
}
"""The checks of this module by constraint id."""
