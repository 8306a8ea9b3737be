"""The table of recipes in the documents is what `plan` computes."""

import pytest

from tasks.config.loading import load_yaml
from tasks.inputs.files import RECIPES, Recipe
from tasks.planning.recipe_table import HEAD, describe_pods, format_recipe_row
from tests.paths import ROOT

NAMES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
PAGE = (ROOT / "docs" / "clusters.md").read_text().splitlines()


def recipe(name):
    return load_yaml(Recipe, RECIPES / f"{name}.yaml")


def test_every_recipe_has_a_row():
    start = PAGE.index(HEAD[0])
    assert PAGE[start + 1] == HEAD[1]
    assert [line.split("`")[1] for line in PAGE[start + 2 : start + 2 + len(NAMES)]] == NAMES


def test_where_recipes_are_placed():
    assert describe_pods(recipe("quickstart"), 0) == "one, without GPUs"
    assert describe_pods(recipe("axolotl_lora"), 0) == "one, of 2 GPUs"
    assert describe_pods(recipe("olmo3_think_32b"), 0) == "a head, and of 8 GPUs each: 8 of learner, 20 of actors"


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_a_row_is_what_plan_computes(name):
    row = format_recipe_row(name, recipe(name))
    assert row in PAGE, f"rlvr recipes {name}: {row}"
