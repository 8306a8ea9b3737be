"""`rlvr check`: files against each other, without a run."""

import runpy

import pytest
import yaml
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.config.loading import SpecError
from tasks.inputs.checking import KINDS, find_kinds
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, RECIPES, ROOT

pytestmark = pytest.mark.long


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The tutorial's files and rows, in the working directory."""
    monkeypatch.chdir(tmp_path)
    assert CliRunner().invoke(rlvr, ["new"]).exit_code == 0
    runpy.run_path("make_rows.py")
    return tmp_path


def check(*files):
    return CliRunner().invoke(rlvr, ["check", *files])


def refused(*files):
    done = check(*files)
    assert isinstance(done.exception, SpecError), done.output
    return str(done.exception)


def write(path, **options):
    path.write_text(yaml.safe_dump(options))
    return str(path)


def test_a_recipe_is_checked_with_the_files_that_it_names(folder):
    done = check("my_recipe.yaml")
    assert done.exit_code == 0, done.output
    assert done.output == "checked     data my_data.yaml, training my_recipe.yaml, evaluation quickstart\n"
    assert sorted(path.name for path in folder.iterdir() if path.is_dir() and path.name != "__pycache__") == []


def test_files_that_contradict_each_other_are_one_sentence(folder):
    (folder / "my_rows.jsonl").write_text('{"question": "1 + 1?"}\n')
    assert "'answer'" in refused("my_recipe.yaml")
    other = write(folder / "other.yaml", extends="quickstart", difficulty={"sampling": {"temperature": 0.3}})
    assert "difficulty.sampling.temperature is 0.3" in refused("my_recipe.yaml", other)


def test_two_files_of_one_kind_are_refused(folder):
    other = write(folder / "other.yaml", extends="quickstart", steps=2)
    assert refused("my_recipe.yaml", other) == (
        f"my_recipe.yaml and {other} are both files for --training: check one at a time"
    )


def test_a_file_that_may_be_of_several_kinds_is_what_a_recipe_says(folder):
    unclear = write(folder / "unclear.yaml", extends="quickstart")
    assert "its keys fit files for --data, --training, --evaluation" in refused("my_recipe.yaml", unclear)
    recipe = write(folder / "recipe.yaml", extends="quickstart", steps=2, evaluation="unclear.yaml")
    done = check(unclear, recipe)
    assert done.exit_code == 0, done.output
    assert done.output == f"checked     data quickstart, training {recipe}, evaluation {unclear}\n"


def test_every_file_that_ships_is_of_its_kind():
    folders = {"data": DATA_SPECS, "training": RECIPES, "evaluation": EVALUATIONS}
    folders["experiment"] = ROOT / "workflows" / "variants"
    assert folders.keys() == KINDS.keys()
    for kind, folder in folders.items():
        for path in folder.glob("*.yaml"):
            assert kind in find_kinds(path), path


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({}, "checked     data my_data.yaml, training mine.yaml, evaluation quickstart"),
        ({"stepz": 4}, "mine.yaml: stepz: unknown key (did you mean 'steps'?)"),
        ({"extends": "quikstart"}, "mine.yaml: extends = 'quikstart': no such file (did you mean 'quickstart'?)"),
        ({"data": "my_dta.yaml"}, "mine.yaml: data = 'my_dta.yaml': my_dta.yaml: no such file"),
    ],
)
def test_a_recipe_that_only_names_its_files_is_a_recipe(folder, options, named):
    write(folder / "mine.yaml", **{"extends": "quickstart", "data": "my_data.yaml", **options})
    done = check("mine.yaml")
    assert named in (done.output if done.exit_code == 0 else str(done.exception))


@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        ({"extends": "quickstart", "stepz": 4}, ["training"]),
        ({"extends": "quickstart", "bencmarks": []}, ["evaluation"]),
        ({"extends": "quickstart", "data": {"mixture.heldout": 2}}, ["experiment"]),
        ({"extends": "quickstart", "data.mixture.heldout": 2}, ["experiment"]),
        ({"extends": "mine.yaml"}, list(KINDS)),
    ],
)
def test_the_kind_of_a_file_is_that_of_the_options_that_its_keys_mean(tmp_path, options, kinds):
    write(tmp_path / "mine.yaml", **options)
    assert find_kinds(tmp_path / "mine.yaml") == kinds


@pytest.mark.parametrize("name", ["quikstart", "nowhere.yaml"])
def test_what_a_file_extends_is_named_if_it_is_not_there(tmp_path, name):
    write(tmp_path / "mine.yaml", extends=name)
    assert f"mine.yaml: extends = '{name}': " in refused(str(tmp_path / "mine.yaml"))


def test_a_file_that_is_no_yaml_file_is_not_said_to_be_missing(folder):
    assert refused("my_rewards.py").startswith("my_rewards.py: not a YAML file; ")
