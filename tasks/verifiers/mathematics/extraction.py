r"""Extracts the final answer from a response.

The answer is the first of these forms that the response contains:

1. boxed       the last complete `\boxed{...}` or `\fbox{...}`, with braces nested to any depth; also `\boxed 7`
2. tag         the last `<answer>...</answer>`
3. hashes      the text after the last `####` on its line (GSM8K)
4. phrase      the text after the last "answer is", "answer:", "answer →" or "correct option is", up to the end of its
               sentence ("the final answer is 12 apples."), or the letter in a later clause that says which option is
               right ("Hence option C is correct."). This includes Minerva's "Final Answer: The final answer is $...$. I
               hope it is correct." (Lewkowycz et al. 2022, https://arxiv.org/abs/2206.14858)
5. line        a capital letter alone on the last line, which chooses an option
6. the last value of the text in any of these forms, read completely or not at all (`plain_text`)
   formula     `$$..$$`, `$..$`, `\[..\]` or `\(..\)`; a dollar sign before an amount does not start a formula
   number      7, -7, 1,234.5, 3/4, 50%, but not a digit in a word such as H2O or 2nd
   expression  anything else: `\frac{10}{9}`, 2x+1, (3, 4), 3 1/2, 10 000
7. line        a last line of one word, such as Yes

A phrase after a box that chooses an option ("Answer: D") takes precedence over the box.

A response has one answer: the last box counts, as in the graders of MATH. Earlier boxes are only read if they belong to
the same answer (`boxes`).
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass

from tasks.verifiers.mathematics.boxes import find_last_boxed
from tasks.verifiers.mathematics.normalisation import remove_text_commands
from tasks.verifiers.mathematics.plain_text import FORMULA, extract_content, find_first_value, find_last_value
from tasks.verifiers.responses import strip_thinking

MAX_CHARS = 20_000
"""Number of characters that are read from the end of a response: answers come last, and long texts take time."""

_TAG = re.compile(r"<(/?)answer>", re.IGNORECASE)
_HASHES = re.compile(r"####([^\n]+)")
_PHRASE = re.compile(
    r"\b(?:answer\**\s{0,3}(?:is\b|must\sbe\b|[-=]>|[:=\u2192\u21d2\u27f6\u2014]|\$?\\(?:long)?rightarrow\b)"
    r"|(?:correct|right|best)\s(?:answer\s)?(?:option|choice|alternative)\**\s{0,3}(?:is\b|must\sbe\b|:)"
    r"|respuesta\**\s{0,3}(?:es\b|:)|réponse\**\s{0,3}(?:est\b|:)"
    r"|Antwort\**\s{0,3}(?:ist\b|lautet\b|:)|ответ\**\s?:)"
    r"|答案\**\s?(?:是|为|為|:)|答え\**\s?(?:は|:)|답\**\s?(?:은|:)|الجواب\s(?:هو|:)|الإجابة\s(?:هي|:)",
    re.IGNORECASE,
)
_MIGHT_CHOOSE = re.compile(r"\b(?:correct|right|best|choose|select|pick)\b", re.IGNORECASE)
_CLAUSE = re.compile(r"[^.!?;:,\n]+")
_MARKUP = re.compile(r"[*_`$]|\\[()]")
_CHOOSES = re.compile(
    r"(?:(?i:and|so|hence|thus|therefore|then|only|clearly|that|this means|i think|i believe|we conclude|it follows)"
    r"\s+)*"
    r"(?:(?:(?i:the)\s+)?(?:(?i:option|choice|answer|alternative)\s+)?\(?(?P<right>[A-J])\)?\s+(?i:is|must be)\s+"
    r"(?i:the\s+)?(?i:correct|right|best)(?:\s+(?i:answer|option|choice|one|alternative))?"
    r"|(?i:i|we)\s+(?i:(?:would|will)\s+)?(?i:choose|select|pick)\s+(?i:option|choice|answer)\s+\(?(?P<picked>[A-J])\)?"
    r"|(?i:i)\s+(?i:would|will)\s+(?i:choose|select|pick)\s+\(?(?P<would>[A-J])\)?)"
)
_SENTENCE_END = re.compile(r"(?<!\\)[.!?;](?=\s|$)|\n")
_CHOICE = re.compile(r"\(?[A-Z]\)?[).:,](?=\s)|\([A-Z]\)|[A-HJ-Z](?=\s+[a-z]{2})")
_LETTER = re.compile(r"[\s*_`]*+(?:(?i:option|choice|final answer|final)[\s*]*+:?)?[\s*`]*+\(?([A-Z])\)?[.\s*_`]*+")
_ONE_WORD = re.compile(r"[\s*_]*+([A-Za-z]{2,})[.!\s*_]*+")
_OTHER_DIGIT = re.compile(r"[^\x00-\x7f]")
_PUNCTUATION = str.maketrans("\u2212\uff1a\uff0c\u3001\uff08\uff09\uff1b", "-:,,();") | {0x3002: ". "}
_WORDY = re.compile(r"\s*[A-Za-z]{2,}\s")
_NEGATION = re.compile(r"\s*not\b")
_VERB = re.compile(r"\b(?:is|are|equals)\b")
_SOMETHING = re.compile(r"[0-9$]|\\[(\[]")


@dataclass(frozen=True)
class Answer:
    """The final answer of a response: its text, and the name of its form."""

    form: str
    text: str


def extract_answer(response: str, *, whole: bool = False) -> Answer | None:
    """Return the final answer, in the order of the module's docstring, or None if there is none.

    In a tag, after hashes and after a phrase, the value is extracted from the words around it, unless `whole` is True.
    """
    text = extract_readable_part(response)
    if choice := _find_choice_after_box(text):
        return Answer("phrase", choice)
    for form, find in _FORMS.items():
        candidate = find(text)
        if candidate and form in _STATEMENTS:
            candidate = _remove_wrapping(candidate) if whole else _extract_stated(candidate)
        if candidate and candidate.strip():
            return Answer(form, candidate.strip())
    value = find_last_value(text)
    if value is not None:
        return Answer(value.form, value.text)
    word = _ONE_WORD.fullmatch(text.rpartition("\n")[2])
    return Answer("line", word[1]) if word else None


def extract_readable_part(response: str) -> str:
    """Return the end of a response without its thinking part, with digits of other scripts replaced by 0 to 9."""
    text = strip_thinking(response)[-MAX_CHARS:]
    if text.isascii():
        return text
    return _OTHER_DIGIT.sub(_convert_digit, text.replace("\u2212 ", "-").translate(_PUNCTUATION))


def _convert_digit(character: re.Match[str]) -> str:
    digit = unicodedata.decimal(character.group(), None)
    return character.group() if digit is None else str(digit)


def _find_choice_after_box(text: str) -> str | None:
    """Return the letter that a phrase after the last box chooses, or None. The box is then only a step."""
    behind = text[text.rfind("\\boxed{") :] if "\\boxed{" in text else ""
    chosen = _LETTER.fullmatch(_find_last_phrase(behind) or "")
    return chosen[1] if chosen and not _LETTER.fullmatch(find_last_boxed(text) or "") else None


def _find_last_box(text: str) -> str | None:
    """Return the content of the last box, or the value of a statement in it such as "The answer is 7"."""
    boxed = find_last_boxed(text)
    phrase = _find_last_phrase(remove_text_commands(boxed)) if boxed else None
    if phrase is None:
        return boxed
    value, letter = find_first_value(phrase), _LETTER.fullmatch(phrase)
    return letter[1] if letter else value.text if value else boxed


def _find_last_letter(text: str) -> str | None:
    """Return the letter of the last line if the line only chooses an option, else None."""
    letter = _LETTER.fullmatch(text.rpartition("\n")[2])
    return letter[1] if letter else None


def _find_last_tag(text: str) -> str | None:
    content, start = None, None
    for tag in _TAG.finditer(text):
        if not tag[1]:
            start = tag.end()
        elif start is not None:
            content, start = text[start : tag.start()].strip() or content, None
    return content


def _find_last_hashes(text: str) -> str | None:
    contents = _HASHES.findall(text)
    return contents[-1] if contents else None


def _find_last_phrase(text: str) -> str | None:
    ends = [phrase.end() for phrase in _PHRASE.finditer(text)]
    if choice := _find_last_chosen(text, ends[-1] if ends else 0):
        return choice
    if not ends:
        return None
    rest = text[ends[-1] :].lstrip(" \t\r\n:*")
    formula = FORMULA.match(rest)
    stop = _SENTENCE_END.search(rest, formula.end() if formula else 0)
    return rest[: stop.start()] if stop else rest


def _find_last_chosen(text: str, start: int) -> str | None:
    """Return the letter of the last clause after `start` that says that an option is right, or None."""
    if not _MIGHT_CHOOSE.search(text, start):
        return None
    chosen = None
    for clause in _CLAUSE.finditer(text, start):
        if _MIGHT_CHOOSE.search(text, clause.start(), clause.end()) and not text.startswith("?", clause.end()):
            choice = _CHOOSES.fullmatch(" ".join(_MARKUP.sub("", clause.group()).split()))
            chosen = next(filter(None, choice.groups())) if choice else chosen
    return chosen


def _extract_stated(text: str) -> str:
    """Return the answer in a short statement: its first value, if there are words around it.

    Values joined by "or" and "and" belong to the answer, because "5 or 6" is not 5. If the statement starts with words,
    the answer follows the verb: "The largest $n$ is 34." A choice is kept as a whole: "C) 12 cm".
    """
    text = _remove_marks(text)
    if _NEGATION.match(text) or _CHOICE.match(text):
        return text
    if _WORDY.match(text) and (verb := _VERB.search(text)) and _SOMETHING.search(text, verb.end()):
        text = text[verb.end() :]
    value = find_first_value(text)
    return value.text if value else text.rpartition("=")[2]


def _remove_wrapping(text: str) -> str:
    text = _remove_marks(text)
    formula = FORMULA.fullmatch(text)
    return extract_content(formula) if formula else text


def _remove_marks(text: str) -> str:
    """Return a text without surrounding Markdown for bold or code."""
    return text.strip().strip("*`").strip()


_FORMS: dict[str, Callable[[str], str | None]] = {
    "boxed": _find_last_box,
    "tag": _find_last_tag,
    "hashes": _find_last_hashes,
    "phrase": _find_last_phrase,
    "line": _find_last_letter,
}
_STATEMENTS = ("tag", "hashes", "phrase")
