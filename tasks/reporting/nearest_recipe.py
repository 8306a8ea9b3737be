"""Finds the built-in recipe that is closest to a run's recipe, for the index of runs."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from tasks.config.loading import load_yaml
from tasks.generation.models import ModelSpec
from tasks.inputs.files import RECIPES, Recipe
from tasks.inputs.minimal_options import written_options
from tasks.lineage.differences import find_differences

COMPANIONS = ("data", "evaluation")
"""Options of a recipe that name its default data and evaluation files. They are ignored, since a run may use others."""


def make_origin_json(model: ModelSpec, written: Mapping[str, Any]) -> dict[str, Any]:
    """Return the initial checkpoint, and the nearest recipe with the options that differ from it.

    Args:
        model: the initial checkpoint.
        written: the non-default options of the recipe.
    """
    recipe, overridden = find_nearest_recipe(written)
    return {"model": model.name, "recipe": recipe, "overridden": overridden}


def find_nearest_recipe(written: Mapping[str, Any]) -> tuple[str, list[str]]:
    """Return the built-in recipe with the fewest differing options, and those options with the run's values.

    The recipe has to be inferred because Flyte passes options to tasks, not the name of the recipe's file. Ties go to
    the first recipe by name.

    Args:
        written: the non-default options of the run's recipe (`written_options`).
    """
    own = _drop_companions(written)
    overridden = {
        name: find_differences([{"training": options}, {"training": own}])[1]
        for name, options in _load_shipped().items()
    }
    nearest = min(overridden, key=lambda name: (len(overridden[name]), name))
    return nearest, [option.removeprefix("training.") for option in overridden[nearest]]


@cache
def _load_shipped() -> dict[str, dict[str, Any]]:
    """Return the non-default options of every built-in recipe, by the recipe's name."""
    return {
        path.stem: _drop_companions(written_options(load_yaml(Recipe, path))) for path in sorted(RECIPES.glob("*.yaml"))
    }


def _drop_companions(written: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in written.items() if name not in COMPANIONS}
