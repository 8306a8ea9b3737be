"""The labels of an execution and its pods: the names of the recipe, the data file and the evaluation file."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import PurePath

from tasks.config import RecipeFile

LONGEST = 63
"""Characters of a label's value, at most, as Kubernetes has it; it begins and ends with a letter or a digit."""
LABELS = {"recipe": "training", "data": "data", "evaluation": "evaluation"}
"""The input whose file each label names."""
GIVEN = "rlvr.files"
"""Key in click's `meta` of the names of files that a command line gives, by the name of the input."""

_REFUSED = re.compile(r"[^A-Za-z0-9_.-]+")


def labels_of(given: Mapping[str, str], recipe: RecipeFile | None) -> dict[str, str]:
    """Return the labels of an execution.

    Args:
        given: names or paths of the files that it is launched with, by the name of the input.
        recipe: the one among them, which names the others unless they are given.
    """
    companions = {name: getattr(recipe, name) for name in ("data", "evaluation") if hasattr(recipe, name)}
    names = {**companions, **given}
    labels = {label: fit(PurePath(names[name]).stem) for label, name in LABELS.items() if name in names}
    return {label: value for label, value in labels.items() if value}


def fit(name: str) -> str:
    """Return a name as Kubernetes takes it for the value of a label; an empty text if it has no letter or digit."""
    return _REFUSED.sub("-", name).strip("_.-")[:LONGEST].rstrip("_.-")
