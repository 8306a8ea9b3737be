"""The recipe that ships which a run is nearest to, and what differs from it."""

import json

import pytest

from tasks.config.loading import load_yaml
from tasks.inputs.files import RECIPES, Recipe, load_quickstart
from tasks.inputs.minimal_options import written_options
from tasks.reporting.index import write_index
from tasks.reporting.nearest_recipe import find_nearest_recipe, make_origin_json

pytestmark = pytest.mark.long  # it reads every recipe


def written(recipe, **changes):
    return written_options(Recipe.model_validate(recipe.model_dump() | changes))


def test_a_recipe_that_ships_is_its_own():
    for path in RECIPES.glob("*.yaml"):
        assert find_nearest_recipe(written_options(load_yaml(Recipe, path))) == (path.stem, [])


def test_what_was_overridden_is_named_with_its_value():
    quick = load_quickstart()[1]
    usual = Recipe.model_fields["checkpoint_every"].default
    options = written(quick, steps=3, data="mine.yaml", seed=quick.seed + 1, checkpoint_every=usual)
    nearest, overridden = find_nearest_recipe(options)
    assert nearest == "quickstart"
    assert sorted(overridden) == ["checkpoint_every = default", f"seed = {quick.seed + 1}", "steps = 3"]
    olmo = load_yaml(Recipe, RECIPES / "olmo3_think_7b.yaml")
    assert find_nearest_recipe(written(olmo, steps=3)) == ("olmo3_think_7b", ["steps = 3"])


def test_the_index_names_model_recipe_and_what_was_overridden(tmp_path):
    quick = load_quickstart()[1]
    for name, steps in (("a", quick.steps), ("b", 3)):
        (tmp_path / name).mkdir()
        summary = make_origin_json(quick.model, written(quick, steps=steps)) | {"seconds": 1.0, "title": "sums"}
        (tmp_path / name / "summary.json").write_text(json.dumps(summary))
    many = {"seconds": 1.0, "recipe": "grpo", "overridden": [f"<{i}> = 1" for i in range(10)]}
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "summary.json").write_text(json.dumps(many))
    page = write_index(tmp_path).read_text()
    assert page.count(f"<td>{quick.model.name}</td>") == 2
    assert "<td>quickstart</td>" in page
    assert "<summary>quickstart with 1 option</summary>" in page
    assert "<code>steps = 3</code>" in page
    assert "<summary>grpo with 10 options</summary>" in page
    assert all(f"<code>&lt;{i}&gt; = 1</code>" in page for i in range(10))
