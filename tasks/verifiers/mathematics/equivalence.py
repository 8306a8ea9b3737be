r"""Decides if an answer equals a reference, by the first of these steps that applies.

1. number      exactly equal, or within `plain_numbers.TOLERANCE` if a decimal is involved
2. text        equal after `tidy`
3. words       a reference of words (Tuesday) is compared as text, ignoring case; "no solution" is a set
               (`sets_of_numbers`)
4. choice      B equals (B), "B) 12 cm" and "B, which is cold"; ACD equals A, C, D (`choices`)
5. structure   sets without order, tuples with order, and lists of several answers are compared member by member
               (`structure`), without qualifiers of a set of numbers that only one side states (`sets_of_numbers`)
6. ratio       times of day, and numbers with colons between them (`ratios`)
7. unit        a unit on only one side is dropped; two different units differ (`units`). The same applies to the noun of
               counted things (`counted`), which differs from any unit
8. relation    "1/3 \approx 0.33" is 1/3; of "x = 5" and "x \in (1, 2)" the right-hand side is compared, unless the
               reference is such a relation itself
9. algebra     math-verify over SymPy (`algebra`)

Later steps cannot overrule a step that has decided. An answer with several members never equals one of them, unless it
restates the same value ("3/8, or 37.5%").
"""

from __future__ import annotations

import re
from itertools import pairwise
from typing import NamedTuple

from tasks.verifiers.mathematics.choices import CHOICE, find_chosen_letter, has_same_letters
from tasks.verifiers.mathematics.counted import split_noun
from tasks.verifiers.mathematics.normalisation import find_refusal, tidy
from tasks.verifiers.mathematics.number_words import convert_to_digits
from tasks.verifiers.mathematics.plain_notation import FUNCTIONS
from tasks.verifiers.mathematics.plain_numbers import is_close, parse_plain_number
from tasks.verifiers.mathematics.ratios import compare_times_or_ratios
from tasks.verifiers.mathematics.sets_of_numbers import convert_to_symbols, match_notation
from tasks.verifiers.mathematics.structure import Shape, parse_shape
from tasks.verifiers.mathematics.unit_names import find_unit
from tasks.verifiers.mathematics.units import split_unit

_WORDS = re.compile(
    rf"(?!.*\b(?:{FUNCTIONS}|and|or)\b)(?=.*[A-Za-z]{{3}})(?=.*[aeiouyA-Z])[A-Za-z][A-Za-z' -]*|[Nn]o|[A-Z]{{2}}"
)
_GAP = re.compile(r"(?<![0-9.]) | (?![0-9.])")  # 2 k is 2k, and 1 2 is not 12
_RESTATED = re.compile(r",?\s+or\s+")
_EQUALS = re.compile(r"(?<![<>!=\\])=(?!=)(?![^{}]*\})")  # not in a subscript, as in sums
_RELATION = re.compile(r"[<>=](?![^{}]*\})|\\(?:l|g|n)e?q?(?![A-Za-z])|\\(?:in|to|neq|subset)(?![A-Za-z])")
_NAME = re.compile(r"\\?[A-Za-z]+'?(?:_\{?[A-Za-z0-9]+\}?)?(?:\([A-Za-z, ]+\))?")
_MEMBER_OF = re.compile(r"\\?[A-Za-z]+\s*\\in(?![A-Za-z])\s*")
_BASE = re.compile(r"([0-9][0-9A-F]*)(?:\s*_\{?\s*\(?\s*|\s+base\s+)([0-9]{1,2}|[a-z]{3,7})\s*\)?\s*\}?")
_BASES = {"two": "2", "three": "3", "four": "4", "five": "5", "six": "6", "seven": "7", "eight": "8", "nine": "9"}
_ASSIGNED = re.compile(r"([A-Za-z])\s*=(?!=)[^=]+")


def is_equivalent(answer: str, reference: str) -> bool:
    """Return True if an answer equals a reference. This is not symmetric: only the reference is trusted."""
    if find_refusal(answer):
        return False
    ours, theirs = tidy(answer), tidy(reference)
    return bool(ours) and _is_same(ours, theirs)


def _is_same(ours: str, theirs: str) -> bool:
    left, right = parse_plain_number(ours), parse_plain_number(theirs)
    if left and right:
        return is_close(left, right)
    if _GAP.sub("", ours) == _GAP.sub("", theirs):
        return True
    ours, theirs = convert_to_symbols(ours), convert_to_symbols(theirs)
    if _WORDS.fullmatch(theirs) and split_unit(theirs)[1] is None:
        # Algebra would read words as products of letters, so that anagrams would be equal.
        same = convert_to_digits(ours.casefold()) == convert_to_digits(theirs.casefold())
        return same or has_same_letters(ours, theirs)
    if (choice := CHOICE.fullmatch(theirs)) and (letter := find_chosen_letter(ours)) is not None:
        return letter == choice[1]
    return has_same_letters(ours, theirs) or _has_same_structure(*match_notation(ours, theirs))


def _has_same_structure(ours: str, theirs: str) -> bool:
    left, right = parse_shape(ours), parse_shape(theirs)
    if left.kind == right.kind == "single":
        return _is_same_single(left.members[0] if left.members else "", right.members[0] if right.members else "")
    if "single" in (left.kind, right.kind):
        return _restates(ours, left, right) or _is_same_non_number(ours, theirs, left, right)
    return _has_same_members(left, right)


def _restates(ours: str, left: Shape, right: Shape) -> bool:
    """Return True if an answer states one value in several different forms, as in 3/8 or 37.5%."""
    forms = set(left.members)
    if right.kind != "single" or not right.members or len(forms) < len(left.members) or not _RESTATED.search(ours):
        return False
    return all(_is_same(member, right.members[0]) for member in left.members)


def _has_same_members(left: Shape, right: Shape) -> bool:
    kinds = {left.kind, right.kind}
    if len(left.members) != len(right.members) or kinds == {"set", "tuple"}:
        return False
    if "tuple" in kinds:
        if kinds == {"tuple"} and len(left.members) == 2 and left.brackets != right.brackets:
            return False
        return all(_is_same(a, b) for a, b in zip(_sort_by_name(left), _sort_by_name(right), strict=True))
    rest = list(right.members)
    for member in left.members:
        partner = next((i for i, other in enumerate(rest) if _is_same(member, other)), None)
        if partner is None:
            return False
        del rest[partner]
    return True


def _sort_by_name(shape: Shape) -> tuple[str, ...]:
    """Return the members sorted by name if all have different names: "y=2, x=1" is (1, 2)."""
    names = [assigned[1] for member in shape.members if (assigned := _ASSIGNED.fullmatch(member))]
    if len(set(names)) < len(shape.members):
        return shape.members
    return tuple(member for _, member in sorted(zip(names, shape.members, strict=True)))


def _is_same_non_number(ours: str, theirs: str, left: Shape, right: Shape) -> bool:
    """Compare several members with a single one, which may be an object such as a union, but not a number."""
    single = left if left.kind == "single" else right
    value, wanted = _remove_prefix(ours, theirs)
    if (value != ours and left is single) or (wanted != theirs and right is single):  # "x=7, x=8" is not just x=8
        return _is_same(value, wanted)
    if single.members and (_MEMBER_OF.match(single.members[0]) or parse_plain_number(split_unit(single.members[0])[0])):
        return False
    return _is_equal_by_algebra(ours, theirs)


def _is_same_single(ours: str, theirs: str) -> bool:
    if ours == theirs:
        return True
    number, other = parse_plain_number(ours), parse_plain_number(theirs)
    if number and other:
        return is_close(number, other)
    if (verdict := compare_times_or_ratios(ours, theirs)) is not None:
        return verdict
    left, right = _parse_quantity(ours), _parse_quantity(theirs)
    if left.differs_from(right):
        return False
    value, wanted = _remove_base(*_remove_prefix(_take_exact_side(left.value), _take_exact_side(right.value)))
    if (value, wanted) != (ours, theirs):
        return bool(value) and bool(wanted) and _is_same(value, wanted)
    return _is_equal_by_algebra(ours, theirs)


class _Quantity(NamedTuple):
    """A value with its unit in one spelling, or with the noun of the counted things. Both are optional."""

    value: str
    unit: str | None
    noun: str | None

    def differs_from(self, other: _Quantity) -> bool:
        """Return True if two quantities have different units, or one is a count and the other a measurement."""
        if self.unit and other.unit:
            return self.unit != other.unit
        return self._measures_what_is_counted(other) or other._measures_what_is_counted(self)

    def _measures_what_is_counted(self, other: _Quantity) -> bool:
        """Return True if this has a unit and the other a noun, or this a percent sign and the other a unit or noun."""
        measured = self.unit not in (None, "unit")
        return bool(measured and other.noun) or (self.value.endswith("%") and bool(other.unit or other.noun))


def _parse_quantity(text: str) -> _Quantity:
    value, unit = split_unit(text)
    if unit is not None and parse_plain_number(value):
        return _Quantity(value, unit, None)
    counted, noun = split_noun(text)
    if noun is None:
        return _Quantity(value, unit, None)
    named = find_unit(noun)
    return _Quantity(counted, named, None if named else noun)


def _remove_prefix(ours: str, theirs: str) -> tuple[str, str]:
    r"""Strip "x =" or "x \in" if only one of the two sides has it."""
    if _MEMBER_OF.match(ours) and not _RELATION.search(theirs):
        return _MEMBER_OF.sub("", ours, count=1), theirs
    if _MEMBER_OF.match(theirs) and not _RELATION.search(ours):
        return ours, _MEMBER_OF.sub("", theirs, count=1)
    left, right = _EQUALS.split(ours), _EQUALS.split(theirs)
    if len(left) > 1 and not _RELATION.search(theirs):
        return _choose_side(left), theirs
    if len(right) == 2 and not _RELATION.search(ours) and _NAME.fullmatch(right[0].strip()):
        return ours, right[1].strip()
    return ours, theirs


def _choose_side(sides: list[str]) -> str:
    """Return the side of an answer's equation with its value, or "" if it states two values: "x=7 x=8", "7=8"."""
    name, last = sides[0].strip(), sides[-1].strip()
    if any(side.rstrip().endswith(f" {name}") for side in sides[1:-1]):
        return ""
    numbers = [parse_plain_number(side) for side in sides]
    if any(one and other and not is_close(one, other) for one, other in pairwise(numbers)):
        return ""
    return name if len(sides) == 2 and _NAME.fullmatch(last) and parse_plain_number(name) else last


def _take_exact_side(text: str) -> str:
    r"""Return the text before the first \approx, or after it if the text before is only a name: x \approx 3.5."""
    exact, sign, rounded = text.partition("\\approx")
    return rounded.strip() if sign and _NAME.fullmatch(exact.strip()) else exact.strip()


def _remove_base(ours: str, theirs: str) -> tuple[str, str]:
    """Strip the base of a number, as in 1011_2, if both sides have the same base or only one side names a base."""
    left, right = _BASE.fullmatch(ours), _BASE.fullmatch(theirs)
    if left and right and _BASES.get(left[2], left[2]) != _BASES.get(right[2], right[2]):
        return "", ""
    return (left[1] if left else ours), (right[1] if right else theirs)


def _is_equal_by_algebra(ours: str, theirs: str) -> bool:
    from tasks.verifiers.mathematics.algebra import is_equal_by_algebra  # loads SymPy, which takes a second

    return is_equal_by_algebra(ours, theirs)
