"""Implements IFEval checks that are wrong or slow in the published package; each docstring states the difference.

Each docstring states the constraint as its prompt does. Unless a difference is stated, the result equals the package's;
the tests compare the two.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from tasks.verifiers.instructions import texts


def compare(number: int, relation: str, threshold: int) -> bool:
    """Return True if `number` is `at least` or `less than` `threshold`, as named by `relation`."""
    return number >= threshold if relation == "at least" else number < threshold


def existence(response: str, keywords: list[str]) -> bool:
    """Check the constraint: Include the keywords in your response.

    Case is ignored, and keywords may occur inside other words. The package uses a keyword as a regular expression:
    `C++` is an error and `a.b` matches `axb`.
    """
    text = response.lower()
    return all(each.lower() in text for each in keywords)


def frequency(response: str, keyword: str, frequency: int, relation: str) -> bool:
    """Check the constraint: The word {keyword} should appear {relation} {frequency} times, in either case, including
    inside other words.
    """
    return compare(response.lower().count(keyword.strip().lower()), relation, frequency)


def forbidden_words(response: str, forbidden_words: list[str]) -> bool:
    """Check the constraint: Do not include the words {forbidden_words}, as whole words, in either case.

    The words are not regular expressions.
    """
    return not any(texts.count_occurrences(response, each) for each in forbidden_words)


def letter_frequency(response: str, letter: str, let_frequency: int, let_relation: str) -> bool:
    """Check the constraint: The letter {letter} should appear {let_relation} {let_frequency} times, in either case.

    Instead of a character other than a to z, the package counts a random letter. Two of IFEval's prompts use # and !.
    """
    return compare(texts.count_letters(response)[letter.lower()], let_relation, let_frequency)


def response_language(response: str, language: str) -> bool:
    """Check the constraint: The entire response should be in {language}.

    In the package, a text without an identifiable language passes for every language.
    """
    return texts.detect_language(response) == language


def english_capital(response: str) -> bool:
    """Check the constraint: The entire response should be in English, by `texts.detect_language`, and in capitals only.

    The package identifies the language of the text in capitals, and then often takes English for German.
    """
    return response.isupper() and texts.detect_language(response.lower()) == "en"


def english_lowercase(response: str) -> bool:
    """Check the constraint: The entire response should be in English and in lowercase letters only."""
    return response.islower() and texts.detect_language(response) == "en"


def multiple_sections(response: str, section_spliter: str, num_sections: int) -> bool:
    """Check the constraint: There must be at least {num_sections} sections, each marked with {section_spliter} X.

    The marker is not a regular expression.
    """
    return len(re.findall(rf"{re.escape(section_spliter.strip())}\s?\d+", response)) >= num_sections


def postscript(response: str, postscript_marker: str) -> bool:
    """Check the constraint: Add a postscript that starts with {postscript_marker}, with any spaces within it.

    The package's pattern takes minutes for a long run of blanks, and uses other markers than P.S. and P.P.S as regular
    expressions.
    """
    marker = postscript_marker.strip()
    known = {"P.P.S": r"p\.\s?p\.\s?s", "P.S.": r"p\.\s?s\."}
    return re.search(known.get(marker, re.escape(marker.lower())), response.lower()) is not None


def number_placeholders(response: str, num_placeholders: int) -> bool:
    """Check the constraint: There must be at least {num_placeholders} placeholders in square brackets, such as
    [address].

    Matching takes linear time here; the published pattern takes minutes for many opening brackets.
    """
    return sum(map(_count_placeholders, response.split("\n"))) >= num_placeholders


def _count_placeholders(line: str) -> int:
    count, start = 0, line.find("[")
    while start >= 0 and (end := line.find("]", start)) >= 0:
        count, start = count + 1, line.find("[", end)
    return count


def number_bullet_lists(response: str, num_bullets: int) -> bool:
    """Check the constraint: There must be exactly {num_bullets} bullet points: lines that start with one asterisk or
    with a hyphen.

    The package's pattern takes minutes for a long run of newlines. As in the package, a lone asterisk and the line
    after it are one bullet point.
    """
    lines = [line.lstrip() for line in response.split("\n")]
    count, number = sum(line.startswith("-") for line in lines), 0
    while number < len(lines):
        if lines[number].startswith("*") and lines[number][1:2] != "*":
            alone = lines[number] == "*"
            count += not alone or number + 1 < len(lines)
            number += alone
        number += 1
    return count == num_bullets


def title(response: str) -> bool:
    """Check the constraint: The response must contain a title in double angular brackets, such as <<poem of joy>>.

    The package's pattern takes minutes for a long run of angular brackets.
    """
    for line in response.split("\n"):
        start, end = line.find("<<"), line.rfind(">>")
        if start >= 0 and end >= start + 3 and line[start:end].lstrip("<").rstrip(">").strip():
            return True
    return False


CHECKS: dict[str, Callable[..., bool]] = {
    "change_case:english_capital": english_capital,
    "change_case:english_lowercase": english_lowercase,
    "detectable_content:number_placeholders": number_placeholders,
    "detectable_content:postscript": postscript,
    "detectable_format:multiple_sections": multiple_sections,
    "detectable_format:number_bullet_lists": number_bullet_lists,
    "detectable_format:title": title,
    "keywords:existence": existence,
    "keywords:forbidden_words": forbidden_words,
    "keywords:frequency": frequency,
    "keywords:letter_frequency": letter_frequency,
    "language:response_language": response_language,
}
"""The checks of this module by constraint id."""
