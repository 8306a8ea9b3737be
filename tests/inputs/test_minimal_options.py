"""The options that a run's report has: those that are not at their defaults, and the same run again."""

import pytest
import yaml

from tasks.config.loading import load_yaml
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, RECIPES, DataFile, EvaluationFile, Recipe
from tasks.inputs.minimal_options import written_options

SHIPPED = [
    *((DataFile, path) for path in sorted(DATA_SPECS.glob("*.yaml"))),
    *((Recipe, path) for path in sorted(RECIPES.glob("*.yaml"))),
    *((EvaluationFile, path) for path in sorted(EVALUATIONS.glob("*.yaml"))),
]


@pytest.mark.parametrize(("model", "path"), SHIPPED, ids=lambda value: getattr(value, "stem", None))
def test_they_give_the_same_specification_after_flytes_round_trip(model, path, tmp_path):
    spec = load_yaml(model, path)
    handed_on = model.model_validate_json(spec.model_dump_json())
    again = tmp_path / "again.yaml"
    again.write_text(yaml.safe_dump(written_options(handed_on)))
    assert load_yaml(model, again) == spec
    assert len(again.read_text().splitlines()) <= 2 * len(path.read_text().splitlines()) + 60  # of what it extends


def test_a_default_that_was_written_and_one_that_was_not_are_left_out():
    assert written_options(Recipe(steps=7, seed=0)) == {"steps": 7}


def test_relative_paths_are_absolute(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    recipe = Recipe.model_validate({"model": {"source": {"kind": "folder", "path": "mine"}}, "data": "my.yaml"})
    assert written_options(recipe) == {
        "data": str(tmp_path / "my.yaml"),
        "model": {"source": {"kind": "folder", "path": str(tmp_path / "mine")}},
    }


def test_a_path_is_spelled_without_the_way_to_it(tmp_path, monkeypatch):
    (tmp_path / "real" / "inner").mkdir(parents=True)
    (tmp_path / "link").symlink_to(tmp_path / "real" / "inner")
    monkeypatch.chdir(tmp_path)
    for named, where in (("err/../mine", "mine"), ("link/../mine", "real/mine"), ("link", "link")):
        recipe = Recipe.model_validate({"model": {"source": {"kind": "folder", "path": named}}})
        assert written_options(recipe)["model"]["source"]["path"] == str(tmp_path.resolve() / where)


def test_in_a_pod_paths_stay_as_they_are():
    recipe = Recipe.model_validate({"model": {"source": {"kind": "folder", "path": "mine"}}})
    assert written_options(recipe, absolute=False) == {"model": {"source": {"kind": "folder", "path": "mine"}}}


def test_a_seed_of_zero_beside_that_of_the_file_stays(tmp_path):
    source = {"domain": "chat", "verifier": "chat_open", "loader": {"kind": "topics", "size": 3}}
    data = DataFile.model_validate(
        {"name": "seeds", "seed": 5, "sources": [{"name": "a", **source}, {"name": "b", "seed": 0, **source}]}
    )
    assert DataFile.model_validate(written_options(data)) == data
