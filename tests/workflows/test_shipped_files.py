"""Every data file and recipe that ships runs, from its first row to the report: `make test-recipes`.

Rows and models come from the stand-in of the hub, and `tests.workflows.shrunk` makes the files small. Samples are part
of `make test`: two data files, and one recipe with light stand-ins in the place of what computes.
"""

import json
import os
import shutil
import subprocess
import sys
import zlib
from pathlib import Path

import pytest
import yaml
from flytekit.types.directory import FlyteDirectory

from tasks.config.loading import load_yaml
from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, EvaluationFile, Recipe, load_recipe_files
from tasks.inputs.preflight import preflight
from tasks.tables.parquet import read_table
from tasks.tables.schemas import GRADED, LEDGER, MIXTURE, SET_ASIDE
from tasks.verifiers.instructions import needs
from tests.hub import cards, models
from tests.hub.code_and_chat import mbpp_rows
from tests.hub.files import lines
from tests.hub.fixture import stand_in_hub  # noqa: F401 - a fixture
from tests.hub.mathematics import gsm8k_rows
from tests.hub.server import serving
from tests.paths import ROOT
from tests.verifiers.chat.fake_endpoint import FakeEndpoint, graded
from tests.workflows.shrunk import one_held_out, shrunk, shrunk_data
from workflows.data import data as curate
from workflows.rlvr import rlvr

PYFLYTE = str(Path(sys.executable).with_name("pyflyte"))
NAMES_OF_DATA = sorted(path.stem for path in DATA_SPECS.glob("*.yaml"))
NAMES_OF_RECIPES = sorted(path.stem for path in RECIPES.glob("*.yaml"))
SHRUNK = [name for name in NAMES_OF_RECIPES if name not in ("quickstart", "quickstart_tools")]
"""Recipes that run shrunk. The quickstart runs as it is, with its own model, in `make demo`: a random one fails at each
of its prompts or passes each time."""

FAMILY = {
    "axolotl_lora": "qwen2",
    "dapo_qwen25_32b": "qwen2",
    "dr_grpo": "qwen2",
    "grpo": "llama",
    "olmo3_instruct_7b": "olmo3",
    "olmo3_think_32b": "olmo3",
    "olmo3_think_7b": "olmo3",
    "one_gpu": "qwen2",
    "one_gpu_lora": "qwen2",
    "prorl_v2": "qwen2",
    "prorl_v2_1_moe": "qwen3_moe",
    "quickstart": "llama",
    "quickstart_tools": "llama",
}
"""The architecture that each recipe trains; the engine serves all of them without a GPU."""


OF_NO_RECIPE = {
    "dolci_instruct_rl": "olmo3_instruct_7b",
    "dolci_think_rl": "olmo3_think_7b",
    "gsm8k": "grpo",
    "local_files": "grpo",
    "mbpp": "grpo",
}
"""A recipe that fits each data file that no recipe names."""


def sampled(names, sample):
    """The names as parameters; those that are not in the sample run in `make test-recipes` alone."""
    return [pytest.param(name, marks=() if name in sample else pytest.mark.complete) for name in names]


def varied(request):
    """A judge's reply, whose score follows from the text that it read."""
    return graded(1 + zlib.crc32(json.dumps(request["messages"]).encode()) % 5)


@pytest.fixture(scope="module")
def judge():
    with FakeEndpoint(varied) as endpoint:
        yield endpoint.url


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A small model, for the lengths of prompts in its tokens."""
    return models.build(tmp_path_factory.mktemp("model") / "model", "llama")


@pytest.fixture
def local_files(tmp_path, monkeypatch):
    """The shipped data files, beside the files that `local_files` reads, in the shape that their authors publish."""
    ifeval = {"key": 1, "prompt": "Write a poem.", "instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    content = {
        "gsm8k_train": gsm8k_rows("train"),
        "gsm8k_test": gsm8k_rows("test"),
        "ifeval_prompts": [ifeval, ifeval | {"key": 2, "prompt": "Describe the sea in winter."}],
        "mbpp": mbpp_rows("train", 6),
    }
    folder = tmp_path / "data_specs"
    (folder / "data").mkdir(parents=True)
    for path in DATA_SPECS.glob("*.yaml"):
        shutil.copy(path, folder)
    for name, rows in content.items():
        (folder / "data" / f"{name}.jsonl").write_bytes(lines(rows))
    monkeypatch.setattr(DataFile, "folder", folder)


def test_every_recipe_has_an_architecture():
    assert list(FAMILY) == NAMES_OF_RECIPES


@pytest.mark.usefixtures("stand_in_hub", "local_files")
@pytest.mark.parametrize("name", sampled(NAMES_OF_DATA, ()))
def test_a_data_file_passes_the_checks_as_it_ships(tmp_path, judge, name):
    path = tmp_path / "data.yaml"
    shipped = load_yaml(DataFile, DATA_SPECS / f"{name}.yaml")
    remote = getattr(shipped.verifiers.judge, "url", None) is not None
    few_rows = one_held_out(shipped)
    path.write_text(yaml.safe_dump({"extends": name} | few_rows | ({"verifiers.judge.url": judge} if remote else {})))
    owners = [one for one in NAMES_OF_RECIPES if load_yaml(Recipe, RECIPES / f"{one}.yaml").data == name]
    _, training, evaluation = load_recipe_files(owners[0] if owners else OF_NO_RECIPE[name])
    checked = preflight(data=load_yaml(DataFile, path), training=training, evaluation=evaluation)
    assert [source.name for source in checked.data.sources] == [source.name for source in shipped.used_sources]


@pytest.mark.pipeline
@pytest.mark.usefixtures("own_cache", "stand_in_hub", "local_files")
@pytest.mark.parametrize("name", sampled(NAMES_OF_DATA, ("gsm8k", "dolci_instruct_rl_7b")))
def test_a_data_file_becomes_a_mixture_of_all_its_sources(tmp_path, judge, tiny, name):
    path = tmp_path / "data.yaml"
    path.write_text(yaml.safe_dump(shrunk_data(name, judge, filtered=False)))
    recipe = load_yaml(Recipe, shrunk("quickstart", tmp_path / "data", judge, tiny))
    data = load_yaml(DataFile, path)
    checked = preflight(data=data, training=recipe, evaluation=recipe.load_companion(EvaluationFile))
    made = curate(data=checked.data, training=recipe, model=FlyteDirectory(str(tiny)))
    mixture, heldout = read_table(made.mixture.path, MIXTURE), read_table(made.heldout.path, GRADED)
    sources = {*mixture["source"].to_pylist(), *heldout["source"].to_pylist()}
    assert sources == {source.name for source in data.used_sources}
    assert set(mixture["domain"].to_pylist()) == {name for source in data.used_sources for name in source.domains}
    kinds = set(read_table(made.set_aside.path, SET_ASIDE)["kind"].to_pylist())
    assert kinds <= {"duplicate"} | (set() if needs.has_data(needs.PUNKT) else {"environment"})


@pytest.mark.pipeline
@pytest.mark.usefixtures("stand_in_hub")
def test_a_recipe_goes_from_its_checks_to_its_report_where_stand_ins_compute(tmp_path, stand_ins):
    recipe = load_yaml(Recipe, shrunk("axolotl_lora", tmp_path))
    files = {"data": recipe.load_companion(DataFile), "evaluation": recipe.load_companion(EvaluationFile)}
    made = rlvr(training=recipe, **files)
    assert json.loads(Path(made.summary.path).read_text())["after"] >= 0
    assert stand_ins.ran["train_policy"] == 1


@pytest.mark.pipeline
@pytest.mark.engine
@pytest.mark.complete
@pytest.mark.separate
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("name", SHRUNK)
def test_a_recipe_runs_from_its_first_row_to_its_report(tmp_path, judge, name):
    recipe = shrunk(name, tmp_path, judge, tmp_path / "model")
    source = load_yaml(Recipe, recipe).model.source
    served = [repository for repository in cards.repositories() if repository.kind == "dataset"]
    if source.kind == "hub":
        served.append(models.weighty(source.name))
    else:
        models.build(tmp_path / "model", FAMILY[name], tie_word_embeddings=True)
    with serving(served) as hub:
        environment = {key: value for key, value in os.environ.items() if not key.startswith(("HF_", "RLVR_"))} | {
            "HOME": str(tmp_path),
            "HF_ENDPOINT": hub,
            "HF_HOME": str(tmp_path / "hf"),
            "HF_HUB_DISABLE_XET": "1",
            "RLVR_OUTPUTS": str(tmp_path / "outputs"),
            "RLVR_RUNS": str(tmp_path / "runs"),
            "FLYTE_SDK_LOCAL_SANDBOX": str(tmp_path / "flyte"),
        }
        command = [PYFLYTE, "run", "workflows/rlvr.py", "rlvr", "--training", str(recipe)]
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=1100)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    outputs = tmp_path / "outputs" / "latest"
    assert "Held-out pass rate" in (outputs / "report.html").read_text()
    assert 0 <= json.loads((outputs / "summary.json").read_text())["after"] <= 1
    trained = [row for row in read_table(outputs / "ledger.parquet", LEDGER).to_pylist() if row["fate"] == "trained"]
    assert [row["step"] for row in trained] == [0, 0]
    assert json.loads((outputs / "policy" / "config.json").read_text())["model_type"] == FAMILY[name]
