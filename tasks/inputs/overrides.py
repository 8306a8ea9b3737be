"""Replaces options of a recipe by `KEY=VALUE` of the command line."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import yaml

from tasks.config.loading import SpecError, find_file, from_options, read_yaml
from tasks.failures import one_line
from tasks.inputs.files import Recipe


def with_overrides(recipe: str, overrides: Sequence[str]) -> Recipe:
    """Return the recipe with options replaced by `KEY=VALUE`; values are YAML.

    Raises:
        SpecError: an override has no key, or is invalid (see `load_yaml`).
    """
    read_yaml(find_file(recipe, Recipe))  # its errors name the recipe alone
    given: dict[str, Any] = {"extends": recipe}
    for override in overrides:
        key, sign, value = override.partition("=")
        if not (key and sign):
            raise SpecError(f"{override!r} must be KEY=VALUE, as in objective.clip_high=0.3")
        given[key] = parse_value(key, value)
    options = json.loads(json.dumps(given, default=str))  # `default=str`: YAML has dates, JSON does not
    return from_options(Recipe, options, " ".join((recipe, *overrides)))


def parse_value(key: str, text: str) -> Any:
    """Return the value that a user wrote for an option, as YAML.

    Raises:
        SpecError: the text is not valid YAML.
    """
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise SpecError(f"{key} = {text!r}: not valid YAML: {one_line(error)}") from None
