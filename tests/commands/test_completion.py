"""Completion of `rlvr` in a shell: names, files and options, without what is slow to load."""

import json
import os
import subprocess
import sys

import pytest
from click.shell_completion import BashComplete

from tasks.commands.bash import END, UNFINISHED, OverridesInBash
from tasks.commands.options import FOLDERS, list_options, list_shipped_names
from tasks.inputs.experiments import ExperimentFile
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, RECIPES, Recipe
from tasks.inputs.overrides import with_overrides
from tests.paths import ROOT
from tests.programs import RLVR

COMPLETE = """
import json, sys
from click.shell_completion import ShellComplete
from tasks.commands.group import rlvr

print(json.dumps([
    [[item.value, item.type] for item in ShellComplete(rlvr, {}, "rlvr", "").get_completions(words[:-1], words[-1])]
    for words in json.loads(sys.argv[1])
]))
print(json.dumps([name for name in ("flytekit", "pandas", "torch") if name in sys.modules]))
"""

ASKED = {
    "commands": ["co"],
    "parts": ["run", "e"],
    "options": ["run", "--tr"],
    "recipes": ["run", "--training", "qu"],
    "data": ["run", "data", "--data", "gsm"],
    "files": ["check", "my_"],
    "in a folder": ["check", "mine/"],
    "keys": ["plan", "grpo", "objective.clip"],
    "values": ["train", "grpo", "learner.dtype="],
    "runs": ["show", "outputs/"],
    "checks": ["doctor", ""],
    "no file": ["check", "zzz"],
}


@pytest.fixture(scope="module")
def completed(tmp_path_factory):
    """What is offered for each of `ASKED`, and the slow packages that were loaded."""
    home = tmp_path_factory.mktemp("home")
    for name in ("my_recipe.yaml", "my_rows.jsonl", "mine/inner.yaml", "outputs/20261126-101500-3f2a/summary.json"):
        (home / name).parent.mkdir(parents=True, exist_ok=True)
        (home / name).write_text("")
    done = subprocess.run(
        [sys.executable, "-c", COMPLETE, json.dumps(list(ASKED.values()))],
        cwd=home,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    answers, loaded = map(json.loads, done.stdout.splitlines())
    return dict(zip(ASKED, answers, strict=True)), loaded


def test_completion_loads_neither_flytekit_nor_pandas_nor_torch(completed):
    assert completed[1] == []


def test_commands_options_names_and_files_are_offered(completed):
    offered = {name: [value for value, _ in items] for name, items in completed[0].items()}
    assert offered["commands"] == ["compare"]
    assert offered["parts"] == ["evaluate", "experiment"]
    assert offered["options"] == ["--training"]
    assert offered["recipes"] == ["quickstart", "quickstart_tools"]
    assert offered["data"] == [path.stem for path in sorted(DATA_SPECS.glob("gsm*.yaml"))]
    assert offered["files"] == ["my_recipe.yaml"]
    assert offered["in a folder"] == ["mine/inner.yaml"]
    assert offered["keys"] == ["objective.clip_high=", "objective.clip_low="]
    assert offered["values"] == ["learner.dtype=auto", "learner.dtype=bfloat16", "learner.dtype=float32"]
    assert offered["runs"] == ["outputs/20261126-101500-3f2a"]
    assert offered["checks"] == ["gpu-check", "cluster-check", "model-check"]
    assert completed[0]["no file"] == [["zzz", "file"]]


def test_the_folders_of_names_are_those_of_the_files():
    assert {
        "data": DATA_SPECS,
        "training": RECIPES,
        "evaluation": EVALUATIONS,
        "experiment": ExperimentFile.folder,
    } == FOLDERS
    assert "olmo3_think_32b" in list_shipped_names("training")


def test_the_keys_that_are_offered_are_options_of_a_recipe():
    options = list_options("training")
    assert {name.partition(".")[0] for name in options} == Recipe.model_fields.keys() | {"extends"}
    chosen = [f"{name}={values[0]}" for name, values in options.items() if values and values[0] in ("false", "true")]
    assert len(chosen) > 10
    needed = {
        "objective.advantage.keep_equal_rewards=false": "objective.advantage.function=my_objective.advantage",
        "objective.correction.mask.increase_only=false": "objective.correction.mask.max=0.5",
    }
    for option in chosen:
        assert with_overrides("quickstart", [needed.pop(option, option), option])
    assert not needed


BASH = """
eval "$(_RLVR_COMPLETE=bash_source rlvr)"
COMP_WORDS=({words}) COMP_CWORD={last}
_rlvr_completion rlvr 2> /dev/null  # compopt complains outside of a completion
printf '%s\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("rlvr plan grpo learner.dt", ["learner.dtype="]),
        ("rlvr plan grpo learner.dtype =", ["auto", "bfloat16", "float32"]),
        ("rlvr plan grpo learner.dtype = b", ["bfloat16"]),
        ("rlvr run --training quicks", ["quickstart", "quickstart_tools"]),
        ("rlvr run --training = quickstart_", ["quickstart_tools"]),
    ],
)
def test_bash_completes_words_that_it_divides(words, offered, tmp_path):
    program = tmp_path / "rlvr"
    program.write_text(f'#!/bin/sh\nexec {" ".join(RLVR)} "$@"\n')
    program.chmod(0o755)
    environment = os.environ | {"PYTHONPATH": str(ROOT), "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    lines = BASH.format(words=words, last=len(words.split()) - 1)
    done = subprocess.run(
        ["/bin/bash", "--norc", "-c", lines], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.stdout.split() == offered, done.stderr


def test_clicks_function_for_bash_ends_as_it_is_extended():
    assert END in BashComplete.source_template
    assert UNFINISHED in OverridesInBash.source_template


def test_a_shell_gets_them_from_the_command(tmp_path):
    words = {"_RLVR_COMPLETE": "bash_complete", "COMP_WORDS": "rlvr plan ol", "COMP_CWORD": "2"}
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | words
    done = subprocess.run(RLVR, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.stdout.split() == [f"plain,{name}" for name in list_shipped_names("training") if name.startswith("ol")]
