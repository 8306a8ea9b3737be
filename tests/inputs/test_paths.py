"""A path in a file is relative to the file, and a file is named by its path or by the name of one that ships."""

import pytest

from tasks.config.loading import SpecError, find_file, load_yaml, parse
from tasks.flyte.archive import collect_sent_files
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe
from tasks.inputs.user_modules import check_sent, list_modules
from tasks.verifiers.functions import judge

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
    assert recipe.load_companion(DataFile).name == "mine"


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
    assert recipe.load_companion(DataFile).sources[0].loader.path == "mine/rows.jsonl"


@pytest.mark.parametrize(("model", "folder"), [(DataFile, DATA_SPECS), (Recipe, RECIPES)])
def test_a_name_is_that_of_a_file_that_ships(model, folder):
    assert find_file("quickstart", model) == folder / "quickstart.yaml"
    assert parse(model, "quickstart") == load_yaml(model, folder / "quickstart.yaml")
    with pytest.raises(SpecError, match=r"^quickstrat: no such file \(did you mean 'quickstart'\?\); a path that ends"):
        parse(model, "quickstrat")


CODE = """
name: mine
sources:
  - name: rows
    domain: math
    verifier: math
    loader: {kind: jsonl, path: rows.jsonl}
    columns: {prompt: q, ground_truth: a}
    transform: split.rows
    rewards: [{function: belohnung.kurz}, {verifier: judges.chess}, {function: elsewhere.f}]
  - name: rooms
    domain: rooms
    verifier: environment
    loader: {kind: jsonl, path: rows.jsonl}
    columns: {prompt: q}
    environment: {name: trl_environment, options: {factory: belohnung.Room, seed: a.b}}
  - name: tools
    domain: math
    verifier: math
    loader: {kind: jsonl, path: rows.jsonl}
    columns: {prompt: q, ground_truth: a}
    environment: {name: belohnung.room, tools: [belohnung.search]}
evaluation_sets: [{name: e, loader: {kind: jsonl, path: rows.jsonl}, transform: split.rows}]
"""


@pytest.fixture
def code(mine):
    """The user's modules beside the data file `mine/data.yaml`."""
    (mine / "judges").mkdir()
    (mine / "judges" / "chess.py").touch()
    for name in ("belohnung", "split"):
        (mine / f"{name}.py").write_text("def kurz(completions, **_): return [1.0 for _ in completions]\n")
    (mine / "rows.jsonl").write_text('{"q": "1?", "a": "1"}\n')
    (mine / "data.yaml").write_text(CODE)
    return mine


def test_code_in_the_folder_of_the_file_is_named_as_seen_from_the_working_directory(code):
    first, second, third = load_yaml(DataFile, "mine/data.yaml").sources
    assert first.transform == "mine.split.rows"
    assert [reward.function or reward.verifier for reward in first.rewards] == [
        "mine.belohnung.kurz",
        "mine.judges.chess",
        "elsewhere.f",
    ]
    assert second.environment.name == "trl_environment"
    assert (third.environment.name, third.environment.tools) == ("mine.belohnung.room", ["mine.belohnung.search"])
    assert second.environment.options == {"factory": "mine.belohnung.Room", "seed": "a.b"}
    [known] = load_yaml(DataFile, "mine/data.yaml").evaluation_sets
    assert known.source.transform == "mine.split.rows"


def test_a_module_in_the_working_directory_keeps_its_name_from_there(code, tmp_path, monkeypatch):
    monkeypatch.chdir(code)
    assert load_yaml(DataFile, "data.yaml").sources[0].transform == "split.rows"


def test_such_code_is_sent_to_a_cluster_and_called(code, tmp_path, monkeypatch):
    data = load_yaml(DataFile, "mine/data.yaml")
    source = data.sources[0].model_copy(update={"rewards": data.sources[0].rewards[:1]})
    data = data.model_copy(update={"sources": [source]})
    assert list_modules([data]) == {"mine.belohnung", "mine.split"}
    check_sent(collect_sent_files(tmp_path), [data], whole=True)
    truth = {"function": source.rewards[0].function, "columns": {}}
    assert judge("text", truth, None).value == 1.0


@pytest.mark.parametrize(
    ("folder", "said"),
    [
        ("my-files", r"Python cannot import from a folder called 'my-files': rename it"),
        ("../outside", r"run the command in \S+/outside, or in a folder above it"),
    ],
)
def test_code_that_cannot_be_imported_from_here_is_named_with_the_way_out(code, tmp_path, monkeypatch, folder, said):
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    code.rename(here / folder)
    with pytest.raises(SpecError, match=rf"data.yaml: '\w+.\w+': \S+ contains \w+, but .*{said}"):
        load_yaml(DataFile, f"{folder}/data.yaml")
