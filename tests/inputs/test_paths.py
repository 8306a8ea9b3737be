"""A path in a file is relative to the file, and a file is named by its path or by the name of one that ships."""

import pytest

from tasks.config import SpecError, file_called, load_yaml, parse
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe

DATA = """
name: mine
sources:
  - name: rows
    domain: math
    verifier: math
    loader: {kind: jsonl, path: rows.jsonl}
    columns: {prompt: q, ground_truth: a}
  - name: many
    domain: math
    verifier: math
    loader: {kind: huggingface, files: [a.csv, /data/b.csv, "s3://bucket/c.csv"]}
    columns: {prompt: q, ground_truth: a}
difficulty:
  compared: {other: {model: {source: {kind: folder, path: models/other}}}}
verifiers:
  judge: {model: judge_model}
"""


@pytest.fixture
def mine(tmp_path, monkeypatch):
    """A folder `mine` with the data file, in the working directory."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine" / "judge_model").mkdir(parents=True)
    (tmp_path / "mine" / "data.yaml").write_text(DATA)
    return tmp_path / "mine"


def test_every_kind_of_path_is_relative_to_its_file(mine):
    data = load_yaml(DataFile, "mine/data.yaml")
    assert data.sources[0].loader.path == "mine/rows.jsonl"
    assert data.sources[1].loader.files == ["mine/a.csv", "/data/b.csv", "s3://bucket/c.csv"]
    assert data.difficulty.compared["other"].model.source.path == "mine/models/other"
    assert data.verifiers.judge.model == "mine/judge_model"


def test_a_file_that_extends_another_has_paths_of_both(mine):
    (mine / "recipes").mkdir()
    (mine / "base.yaml").write_text("extends: quickstart\ndata: data.yaml\nmodel.source: {kind: folder, path: model}\n")
    (mine / "recipes" / "own.yaml").write_text("extends: ../base.yaml\nevaluation: own.yaml\n")
    recipe = load_yaml(Recipe, "mine/recipes/own.yaml")
    assert recipe.data == "mine/recipes/../data.yaml"
    assert recipe.evaluation == "mine/recipes/own.yaml"
    assert recipe.model.source.path == "mine/recipes/../model"
    assert recipe.companion(DataFile).name == "mine"


def test_a_file_in_the_working_directory_alone_is_named_with_the_path_to_write(mine, tmp_path):
    (tmp_path / "rows.jsonl").touch()
    with pytest.raises(SpecError) as caught:
        load_yaml(DataFile, "mine/data.yaml")
    assert str(caught.value) == (
        "mine/data.yaml: 'rows.jsonl': there is no mine/rows.jsonl; a path in a file is relative to the file: for "
        "rows.jsonl in the working directory write '../rows.jsonl'"
    )


def test_text_on_the_command_line_is_relative_to_the_working_directory(mine):
    recipe = parse(Recipe, "{extends: quickstart, data: mine/data.yaml}")
    assert recipe.companion(DataFile).sources[0].loader.path == "mine/rows.jsonl"


@pytest.mark.parametrize(("model", "folder"), [(DataFile, DATA_SPECS), (Recipe, RECIPES)])
def test_a_name_is_that_of_a_file_that_ships(model, folder):
    assert file_called("quickstart", model) == folder / "quickstart.yaml"
    assert parse(model, "quickstart") == load_yaml(model, folder / "quickstart.yaml")
    with pytest.raises(SpecError, match=r"^quickstrat: no such file \(did you mean 'quickstart'\?\); a path that ends"):
        parse(model, "quickstrat")
