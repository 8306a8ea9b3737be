"""Computes the labels of an execution and its pods: the names of the recipe, the data file and the evaluation file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from tasks.config.loading import RecipeFile

LONGEST = 63
"""Maximum length of a label's value in Kubernetes. A value must begin and end with a letter or a digit."""
LABELS = {"recipe": "training", "data": "data", "evaluation": "evaluation"}
"""The input that each label is taken from."""
GIVEN = "rlvr.files"
"""Key in click's `meta` for the names of the files given on the command line, by the name of the input."""

_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")


def make_labels(given: Mapping[str, str], recipe: RecipeFile | None) -> dict[str, str]:
    """Return the labels of an execution.

    Args:
        given: names or paths of the files that it is launched with, by the name of the input.
        recipe: the recipe, which names the other files unless they are given.
    """
    companions = {name: getattr(recipe, name) for name in ("data", "evaluation") if hasattr(recipe, name)}
    names = {**companions, **given}
    labels = {label: fit(PurePath(names[name]).stem) for label, name in LABELS.items() if name in names}
    return {label: value for label, value in labels.items() if value}


def fit(name: str) -> str:
    """Convert a name to a valid Kubernetes label value, which is empty if the name has no letter or digit."""
    return _REFUSED.sub("-", name).strip("_.-")[:LONGEST].rstrip("_.-")
