"""The page on extending: its changes apply to the checkout as it is, and the lines behind them run."""

import itertools
import os
import re
import shutil
import subprocess
import sys

import pyarrow.parquet as pq
import pytest

from tasks.tables.json_lines import read_json_lines
from tests.paths import ROOT
from tests.programs import RLVR
from tests.training.mixtures import mixture
from tests.training.test_command import OVERRIDES

PAGE = (ROOT / "docs" / "extending.md").read_text()
DIFFS = re.findall(r"^```diff\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
WRITTEN = dict(re.findall(r"^```(?:python|yaml)\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
PROGRAMS = {name: text for name, text in WRITTEN.items() if name.startswith("try_")}
BESIDE = ("my_verifiers/contains.py", "capitals.yaml", "my_objective.py", "own_objective.yaml")
"""The files that a program reads."""
PRINTED = {
    "try_loader.py": "1 prompt",
    "try_verifier.py": "1 prompt, 1 set aside\n1.0 0.0",
    "try_objective.py": "my_objective.spo my_objective.discounted",
}


@pytest.fixture(scope="module")
def changed(tmp_path_factory):
    """A copy of the packages, with all of the page's changes."""
    folder = tmp_path_factory.mktemp("extended")
    for name in ("tasks", "workflows", "images", "data_specs"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for diff in DIFFS:
        command = ["git", "apply", "--whitespace=nowarn", "-"]
        done = subprocess.run(command, input=diff, cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    for name in BESIDE:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(WRITTEN[name])
    return folder


@pytest.mark.long
@pytest.mark.parametrize("name", PRINTED)
def test_the_lines_behind_a_change_run(changed, name):
    assert PROGRAMS.keys() == PRINTED.keys()
    (changed / name).write_text(PROGRAMS[name])
    done = subprocess.run([sys.executable, name], cwd=changed, capture_output=True, text=True, timeout=300)
    assert done.stdout.strip() == PRINTED[name], done.stderr[-2000:]


@pytest.mark.complete
@pytest.mark.engine
def test_a_recipe_trains_with_the_loss_and_the_advantage(tiny_model, tmp_path):
    for name in ("my_objective.py", "own_objective.yaml"):
        (tmp_path / name).write_text(WRITTEN[name])
    prompts = mixture(tmp_path, [f"Write a sentence about the {word}" for word in ("sea", "river", "rain", "dog")])
    options = [*OVERRIDES, "steps=2", "keep_tokens=1", "--folder", "run"]
    command = ["train", "own_objective.yaml", "--mixture", str(prompts), "--model", str(tiny_model), *options]
    done = subprocess.run(
        [*RLVR, *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert [row["own/distance"] == 0 for row in rows] == [True, True]  # one update for each batch
    files = sorted((tmp_path / "run" / "rollouts").glob("*.parquet"))
    trained = [row for file in files for row in pq.read_table(file).to_pylist() if row["fate"] == "trained"]
    assert trained
    for row in trained:
        first, *others = row["token_advantages"]
        gains = [after / before for before, after in itertools.pairwise([first, *others]) if before]
        assert gains == pytest.approx([1 / 0.99] * len(gains), rel=1e-5)  # float32
        assert row["advantage"] is None


def test_the_arguments_that_pass_through_are_read(tmp_path):
    from tasks.config.loading import load_yaml
    from tasks.inputs.files import Recipe

    (text,) = re.findall(r"^```yaml\n(# fp8.yaml\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    (tmp_path / "fp8.yaml").write_text(text)
    recipe = load_yaml(Recipe, tmp_path / "fp8.yaml")
    assert recipe.actors.engine.vllm == {
        "quantization": "fp8",
        "kv_cache_dtype": "fp8",
        "max_num_batched_tokens": 16384,
    }
    assert (
        recipe.actors.engine.max_model_len
        == load_yaml(Recipe, Recipe.folder / "olmo3_think_7b.yaml").actors.engine.max_model_len
    )
    assert recipe.learner.deepspeed["zero_optimization"]["offload_optimizer"] == {"device": "cpu"}


def test_the_objectives_of_the_table_are_read():
    from tasks.config.loading import parse
    from tasks.recipe.objective import ObjectiveConfig

    values = re.findall(r"^\| .* \| `(\{.*\})` \|$", PAGE, re.MULTILINE)
    read = [parse(ObjectiveConfig, value) for value in values]
    assert len({value.model_dump_json() for value in [*read, ObjectiveConfig()]}) == 9


def test_the_recipe_is_read():
    from tasks.config.loading import parse
    from tasks.inputs.files import Recipe

    (text,) = re.findall(r"^```yaml\n# workflows/recipes/\S+\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    pairs = ", ".join(line for line in lines)
    assert parse(Recipe, "{" + pairs + "}").objective.clip_high == 0.2
