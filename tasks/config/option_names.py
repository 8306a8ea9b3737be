"""Finds the option that a user means by an unknown key: a nested one, or an option with another name in TRL or verl."""

from __future__ import annotations

import difflib
import json
import types
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel

from tasks.config.nested_values import leaves

SIMILAR = 0.75
"""Smallest similarity of a key to the name of a nested option that is suggested, a ratio of difflib's."""
MOST = 3
"""Maximum number of options that are suggested for one key."""

_ELSEWHERE: dict[str, dict[str, str]] = json.loads(Path(__file__).with_suffix(".json").read_text())
OF_TRL = _ELSEWHERE["trl"]
"""Options of TRL's `GRPOConfig` by their names there, and the options of a recipe that set the same."""
OF_VERL = _ELSEWHERE["verl"]
"""Options of verl's `ppo_trainer.yaml` by their names there, and the options of a recipe that set the same."""
OTHERS = _ELSEWHERE["others"]
"""Names in papers and on command lines, and the options of a recipe that set the same."""
# Verl's names are also met without the sections that contain them, if no two sections have the same last name.
_LAST = [name.rpartition(".")[2] for name in OF_VERL]
ELSEWHERE = (
    {name: option for name, option in zip(_LAST, OF_VERL.values(), strict=True) if _LAST.count(name) == 1}
    | OTHERS
    | OF_VERL
    | OF_TRL
)
"""Names of options in other libraries, and the options of a recipe that set the same."""


def list_nested_options(model: type[BaseModel], above: tuple[type[BaseModel], ...] = ()) -> Iterator[str]:
    """Yield the dotted names of all options of a file of type `model`, except in lists and mappings by name."""
    for name, field in model.model_fields.items():
        yield name
        for inner in _find_sections(field.annotation):
            if inner not in above:
                yield from (f"{name}.{option}" for option in list_nested_options(inner, (*above, model)))


def make_option_hint(key: str, value: Any, model: type[BaseModel], siblings: Mapping[str, float]) -> str:
    """Return a hint in parentheses on the options of a file that an unknown key may mean, or an empty text.

    Args:
        key: the unknown key, with dots if it is in a section.
        value: its value. A mapping may be a section of another library's file.
        model: type of the file.
        siblings: names that are accepted instead of the key at its place, with their similarity to it (0 to 1).
    """
    options = list(dict.fromkeys(list_nested_options(model)))
    if isinstance(value, dict):
        known = [f"{name} is {ELSEWHERE[name]}" for name, _ in leaves(value, key) if ELSEWHERE.get(name) in options]
        return f" ({', '.join(known)} here)" if known else ""
    meant = [] if key in options else _find_meant(key, options, siblings)  # an option of another `kind`
    return f" (did you mean {' or '.join(map(repr, meant))}?)" if meant else ""


def _find_meant(key: str, options: list[str], siblings: Mapping[str, float]) -> list[str]:
    last = key.rpartition(".")[2]
    if same := [option for option in options if option.rpartition(".")[2] == last]:
        return _keep_shortest(same)
    for name in (key, last):
        if ELSEWHERE.get(name) in options:
            return [ELSEWHERE[name]]
    similar = {option: _compute_similarity(last, option.rpartition(".")[2]) for option in options}
    best = max(similar.values(), default=0.0)
    if best < SIMILAR or best <= max(siblings.values(), default=0.0):
        return []
    return _keep_shortest([option for option, similarity in similar.items() if similarity == best])


def compute_similarities(key: str, names: list[str]) -> dict[str, float]:
    """Return the similarity of a key to each name, 0 to 1."""
    return {name: _compute_similarity(key, name) for name in names}


def _compute_similarity(key: str, name: str) -> float:
    return difflib.SequenceMatcher(None, key, name).ratio()


def _keep_shortest(options: list[str]) -> list[str]:
    return sorted(options, key=lambda option: option.count("."))[:MOST]


def _find_sections(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models that an option's value may be. Models of its items are left out."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    elif get_origin(annotation) in (Union, types.UnionType):
        for member in get_args(annotation):
            yield from _find_sections(member)
    elif get_origin(annotation) is Annotated:
        yield from _find_sections(get_args(annotation)[0])
