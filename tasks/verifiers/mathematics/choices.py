"""Reads answers that choose one or several options by their letters.

    B   (B)   B) 12 cm   B, which is cold   B because it is cold   B is correct            chooses B
    B is incorrect   I don't know   A triangle   R / 2   B and C   B or C                  chooses none
    ACD   A, C, D   (A), (C) and (D)                                                       choose the same three

A bare letter may also start a sentence or a formula. It is only a choice if it is followed by nothing, by a comma, a
dash or a reason, or by a statement that it is right.
"""

from __future__ import annotations

import re

CHOICE = re.compile(r"\(?([A-Z])\)?")
"""Pattern of a reference that is a choice."""

_CHOSEN = re.compile(
    r"(?:(?i:option|choice|answer)\s+)?(?:\(([A-Z])\)|([A-Z])(?:[).:]+|\s:)|([A-Z]))(?P<rest>.*)|\(?([a-j])\)?",
    re.DOTALL,
)
_DESCRIBED = re.compile(r"[.:]?\s*(?!and\b|or\b)[0-9A-Za-z$\\(\"'].*|\s*[.:]*", re.DOTALL)
_REASON = r"because|since|as|for|which|that|due"
_EXPLAINED = re.compile(
    rf"(?!.*\b(?:and|or|not)\b)(?:(?:\s*[,;:.]|\s+-+)\s+[A-Za-z]{{2}}.*|\s+(?:{_REASON})\s.*)|\s*[.,:]*", re.DOTALL
)
_CONFIRMED = re.compile(
    r"\s+is\s+(?:the\s+)?(?:correct|right|true|best)(?:\s+(?:option|choice|answer|one))?(?:[.,;]\s.*|\s*[.!]*)",
    re.DOTALL,
)
_VERBS = r"(?:(?:is|was|seems?|looks|must|can|could|be)\s+)"
_WRONG = r"(?:(?:the|an?)\s+)?(?:incorrect|wrong|impossible|false\b|ruled\s+out|eliminated)"
_RIGHT = r"(?:be\s+)?(?:the\s+)?(?:correct|right|answer|it\b)"
_DENIED = re.compile(
    rf"\s+{_VERBS}+(?:{_WRONG}|not\s+{_RIGHT})|\s+(?:cannot|(?:is|was|can|could)n['\u2019]t)\s+{_RIGHT}", re.IGNORECASE
)
_CALLED_WRONG = re.compile(rf"[\s.:,;-]*(?:(?:which|that)\s+is\s+)?{_WRONG}", re.IGNORECASE)
_OTHER_CHOICE = re.compile(r"\b(?!A\s+[a-z]|I\s+[a-z])[A-Z]\b")
_SEPARATED = re.compile(r"\(?[A-J]\)?(?:(?:\s*[,;&]\s*(?:and\s+)?|\s+and\s+)\(?[A-J]\)?)+")
_GLUED = re.compile(r"(?=.{2})A?B?C?D?E?F?G?H?I?J?")


def find_chosen_letter(text: str) -> str | None:
    """Return the letter that a normalised text chooses, in upper case.

    The text after a marked letter, as in "C) 12 cm", describes the choice. A bare letter may be a variable, so only an
    explanation may follow it.

    Returns:
        The letter, or an empty string if the rest of the text denies the choice or does not fit one, or None if the
        text does not have the form of a choice at all.
    """
    chosen = _CHOSEN.fullmatch(text)
    if chosen is None:
        return None
    marked, bare, rest = chosen[1] or chosen[2], chosen[3], chosen["rest"]
    if rest and (_OTHER_CHOICE.search(rest) or not _is_compatible(rest, bare)):
        return ""
    return (marked or bare or chosen[5]).upper()


def _is_compatible(rest: str, bare: str | None) -> bool:
    """Return True if the words after a letter are compatible with choosing it."""
    if bare is None:
        return _DESCRIBED.fullmatch(rest) is not None and not _DENIED.match(rest)
    if _CONFIRMED.fullmatch(rest):
        return True
    begins_a_sentence = bare == "I" and rest.strip(" .,:")
    return _EXPLAINED.fullmatch(rest) is not None and not (begins_a_sentence or _CALLED_WRONG.match(rest))


def has_same_letters(answer: str, reference: str) -> bool:
    """Return True if one side is several letters in alphabetical order (ACD) and the other lists them (A, C, D)."""
    for glued, separated in ((answer, reference), (reference, answer)):
        if _GLUED.fullmatch(glued) and _SEPARATED.fullmatch(separated):
            return set(glued) == set(re.findall("[A-J]", separated))
    return False
