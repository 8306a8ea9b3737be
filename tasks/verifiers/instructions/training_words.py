"""Checks IF-RLVR's training constraints on the number and the position of words and letters.

Source: Pyatkin et al. 2025, https://arxiv.org/abs/2507.02833. Each check is a pure function of the response and the
constraint's arguments that returns True if the response satisfies the constraint; its docstring states the constraint
as its prompt does. "The published check" is open-instruct's. If it differs from its own prompt, these checks follow the
prompt. Words are compared in either case and without punctuation; published checks compare tokens, including
punctuation.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise

from tasks.verifiers.instructions.ifeval import compare, letter_frequency
from tasks.verifiers.instructions.texts import cased_words, count_letters, count_occurrences, split_sentences, words


def _normalize_word(text: str) -> str:
    """Return an argument's word in the form that `words` returns."""
    return " ".join(words(text)) or text.strip().lower()


def word_once(response: str, keyword: str) -> bool:
    """Check the constraint: Include the keyword {keyword} in your response, once.

    In the published version, only the constraint's name says "once", and `sun` in `sunny` counts. Here only whole words
    count.
    """
    return count_occurrences(response, keyword) == 1


def word_count_different_numbers(response: str, keyword: str, frequency: int, relation: str | None = None) -> bool:
    """Check the constraint: In your response, the word {keyword} should appear {frequency} times, or {relation}
    {frequency} times.

    The published prompt names no relation, but its check requires one. Here the count must be exact without a relation.
    """
    count = count_occurrences(response, keyword)
    return count == frequency if relation is None else compare(count, relation, frequency)


def exclude_word_harder(response: str, keyword: str) -> bool:
    """Check the constraint: Do not include the keyword {keyword} in the response.

    The published check only finds the keyword between two blanks and in the same case.
    """
    return count_occurrences(response, keyword) == 0


def no_adjacent_consecutive(response: str) -> bool:
    """Check the constraint: No two adjacent words can start with consecutive letters of the alphabet, such as "big
    cat".

    Only ascending order counts, as in the published check. Only a to z are letters here; the published check also
    compares other characters, such as brackets.
    """
    initials = [ord(each[0]) for each in words(response)]
    return not any(ord("a") <= first < ord("z") and second == first + 1 for first, second in pairwise(initials))


def palindrome(response: str) -> bool:
    """Check the constraint: Include a palindrome in your response: a word of at least 3 letters.

    The published checker accepts words of one letter, such as `a` and `I`; this one does not.
    """
    return any(len(each) >= 3 and each.isalpha() and each == each[::-1] for each in words(response))


def keyword_specific_position(response: str, keyword: str, n: int, m: int) -> bool:
    """Check the constraint: Include the keyword {keyword} in the {n}-th sentence, as word {m} of that sentence."""
    parts = split_sentences(response)
    return len(parts) >= n and words(parts[n - 1])[m - 1 : m] == (_normalize_word(keyword),)


def start_end(response: str) -> bool:
    """Check the constraint: Start and end your response with the same word, and write nothing after it, not even
    punctuation.

    The response must have at least two words, as in the published check.
    """
    answered = words(response)
    return len(answered) >= 2 and answered[0] == answered[-1] and response.rstrip()[-1].isalnum()


def first_word_sent(response: str, first_word: str) -> bool:
    """Check the constraint: The first word of each sentence should be the word {first_word}."""
    parts = split_sentences(response)
    return bool(parts) and all(words(each)[0] == _normalize_word(first_word) for each in parts)


def first_word_answer(response: str, first_word: str) -> bool:
    """Check the constraint: The first word of your response should be the word {first_word}."""
    return words(response)[:1] == (_normalize_word(first_word),)


def last_word_sent(response: str, last_word: str) -> bool:
    """Check the constraint: The last word of each sentence, before punctuation, should be the word {last_word}."""
    parts = split_sentences(response)
    return bool(parts) and all(words(each)[-1] == _normalize_word(last_word) for each in parts)


def last_word_answer(response: str, last_word: str) -> bool:
    """Check the constraint: The last word of your response, ignoring punctuation, should be {last_word}."""
    return words(response)[-1:] == (_normalize_word(last_word),)


def lowercase_counting(response: str, N: int) -> bool:  # noqa: N803 (the argument's published name)
    """Check the constraint: In your response, lowercase words should appear at most {N} times, all of them together."""
    return sum(map(str.islower, cased_words(response))) <= N


def letter_counting(response: str, N: int, relation: str) -> bool:  # noqa: N803
    """Check the constraint: Answer with {relation} {N} letters.

    Letters are of any alphabet; in the published check, only A to Z.
    """
    return compare(sum(count for each, count in count_letters(response).items() if each.isalpha()), relation, N)


def count_unique(response: str) -> bool:
    """Check the constraint: Only use unique words in your response, no word should be repeated.

    In the published check, punctuation must not repeat either.
    """
    return len(set(words(response))) == len(words(response))


def count_increment_word(response: str, keyword1: str, keyword2: str) -> bool:
    """Check the constraint: Include the keyword {keyword1} once in your response and the keyword {keyword2} twice, both
    as whole words.
    """
    return count_occurrences(response, keyword1) == 1 and count_occurrences(response, keyword2) == 2


CHECKS: dict[str, Callable[..., bool]] = {
    "count:count_increment_word": count_increment_word,
    "count:count_unique": count_unique,
    "count:lowercase_counting": lowercase_counting,
    "first_word:first_word_answer": first_word_answer,
    "first_word:first_word_sent": first_word_sent,
    "keywords:exclude_word_harder": exclude_word_harder,
    "keywords:keyword_specific_position": keyword_specific_position,
    "keywords:no_adjacent_consecutive": no_adjacent_consecutive,
    "keywords:palindrome": palindrome,
    "keywords:start_end": start_end,
    "keywords:word_count_different_numbers": word_count_different_numbers,
    "keywords:word_once": word_once,
    "last_word:last_word_answer": last_word_answer,
    "last_word:last_word_sent": last_word_sent,
    "letters:letter_counting": letter_counting,
    "letters:letter_counting2": letter_frequency,
}
"""The checks of this module by constraint id."""
