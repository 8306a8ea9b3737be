"""Finds the recipe that ships from which a run differs least, so that the index of runs can name it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from tasks.config import load_yaml
from tasks.generation.models import ModelSpec
from tasks.inputs.files import RECIPES, Recipe
from tasks.inputs.minimal_options import written_options
from tasks.lineage.differences import differences

COMPANIONS = ("data", "evaluation")
"""Options of a recipe that name the files which go with it; a run has its own."""


def origin_json(model: ModelSpec, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return what tells runs apart: the initial checkpoint, and the nearest recipe with what differs from it.

    Args:
        model: the initial checkpoint.
        written: the options of the recipe that are not at their defaults.
    """
    recipe, overridden = nearest_recipe(written)
    return {"model": model.name, "recipe": recipe, "overridden": overridden}


def nearest_recipe(written: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the name of the recipe that ships with the fewest other options, and these, as the run has them.

    A run does not know the name of its recipe's file: Flyte hands its options to every task. Of several recipes with
    the same number the first by name counts.

    Args:
        written: the options of the run's recipe that are not at their defaults (`written_options`).
    """
    own = _without_companions(written)
    overridden = {
        name: differences([{"training": options}, {"training": own}])[1] for name, options in _shipped().items()
    }
    nearest = min(overridden, key=lambda name: (len(overridden[name]), name))
    return nearest, [option.removeprefix("training.") for option in overridden[nearest]]


@cache
def _shipped() -> dict[str, dict[str, Any]]:
    """The options of every recipe that ships that are not at their defaults, by its name."""
    return {
        path.stem: _without_companions(written_options(load_yaml(Recipe, path)))
        for path in sorted(RECIPES.glob("*.yaml"))
    }


def _without_companions(written: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if name not in COMPANIONS}
