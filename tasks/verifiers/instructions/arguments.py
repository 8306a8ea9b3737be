"""Lists the 112 constraints of `precise_if` with their arguments.

`IFEVAL` contains the 25 constraints of IFEval (Zhou et al. 2023, https://arxiv.org/abs/2311.07911). `TRAINING` contains
the 29 that IF-RLVR trains on (Pyatkin et al. 2025, https://arxiv.org/abs/2507.02833). `IFBENCH` contains the 58 of the
benchmark in the same paper, which is for evaluation only. Importing this module loads no checkers.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

TABLES: dict[str, Any] = json.loads(Path(__file__).with_name("constraints.json").read_text(encoding="utf-8"))
"""The languages; by constraint id the kinds of the arguments, for each source of constraints; and the NLTK data."""

LANGUAGES: tuple[str, ...] = tuple(TABLES["languages"])
"""ISO 639-1 codes of the languages that IFEval uses and that its language identifier can distinguish."""

RELATIONS = ("at least", "less than")
"""The two comparisons of a count with its threshold."""


class ArgumentsError(ValueError):
    """The arguments of a constraint are invalid; the message names the constraint and the argument."""


@dataclass(frozen=True)
class Kind:
    """The type of one argument.

    Attributes:
        description: the accepted values in words.
        accepts: returns True for an accepted value.
        optional: True if the argument may be absent.
    """

    description: str
    accepts: Callable[[Any], bool]
    optional: bool = False


def _is_whole(value: Any, low: int, high: float = float("inf")) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())


_RELATION = Kind("'at least' or 'less than'", lambda value: value in RELATIONS)
_KINDS = {
    "count": Kind("a count", lambda value: _is_whole(value, 0)),
    "positive": Kind("a count of at least 1", lambda value: _is_whole(value, 1)),
    "percentage": Kind("a whole percentage", lambda value: _is_whole(value, 0, 100)),
    "text": Kind("a text", _is_text),
    "word": Kind("one word", lambda value: _is_text(value) and len(value.split()) == 1),
    "texts": Kind(
        "a list of texts", lambda value: isinstance(value, list) and bool(value) and all(map(_is_text, value))
    ),
    "character": Kind("one character", lambda value: _is_text(value) and len(value) == 1),
    "language": Kind(f"one of {', '.join(LANGUAGES)}", lambda value: value in LANGUAGES),
    "relation": _RELATION,
    "optional relation": replace(_RELATION, optional=True),
    "phrase": Kind("a phrase of at least 3 words", lambda value: _is_text(value) and len(value.split()) >= 3),
}

Schema = Mapping[str, Kind]
"""The types of the arguments of one constraint, by name."""


def _parse_schemas(source: str) -> dict[str, Schema]:
    return {
        name: {argument: _KINDS[kind] for argument, kind in kinds.items()} for name, kinds in TABLES[source].items()
    }


IFEVAL = _parse_schemas("IFEval")
"""Argument types of the constraints of IFEval, by constraint id."""
TRAINING = _parse_schemas("IF-RLVR")
"""Argument types of the constraints that IF-RLVR trains on, by constraint id."""
IFBENCH = _parse_schemas("IFBench")
"""Argument types of the constraints of IFBench, by constraint id."""
SCHEMAS: dict[str, Schema] = IFEVAL | TRAINING | IFBENCH
"""Argument types of all constraints, by constraint id."""

_IN_ORDER = {
    "count:word_count_range": ("min_words", "max_words"),
    "length_constraints:nth_paragraph_first_word": ("nth_paragraph", "num_paragraphs"),
    "new:copy_span_idx": ("n_start", "n_end"),
    "repeat:repeat_span": ("n_start", "n_end"),
}
"""Pairs of arguments by constraint; the first must not be greater than the second."""


def normalize(name: str, given: Any) -> dict[str, Any]:
    """Check the arguments of a known constraint, and return them in the format of its checker.

    Nulls count as absent, because tables have a column for every argument. Integers stored as floats (as in tables with
    nulls) become integers, and a text stored as a list of one text (as in IF-RLVR's rows) becomes the text.

    Raises:
        ArgumentsError: If an argument is unknown, missing or of the wrong type.
    """
    if not isinstance(given, dict):
        raise ArgumentsError(f"the arguments of {name} are not an object")
    wanted = SCHEMAS[name]
    arguments = {key: _normalize_value(value, wanted.get(key)) for key, value in given.items() if value is not None}
    needed = {key for key, kind in wanted.items() if not kind.optional}
    if not needed <= arguments.keys() <= wanted.keys():
        raise ArgumentsError(f"{name} accepts the arguments {sorted(wanted)}")
    for key, value in arguments.items():
        if not wanted[key].accepts(value):
            raise ArgumentsError(f"{name}: {key} must be {wanted[key].description}")
    if name in _IN_ORDER and arguments[_IN_ORDER[name][0]] > arguments[_IN_ORDER[name][1]]:
        raise ArgumentsError(f"{name}: {_IN_ORDER[name][0]} must not be above {_IN_ORDER[name][1]}")
    return arguments


def _normalize_value(value: Any, kind: Kind | None) -> Any:
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if kind in (_KINDS["text"], _KINDS["word"]) and isinstance(value, list) and len(value) == 1:
        return value[0]
    return value
