"""The command `rlvr`: its subcommands, what they load, and flytekit's options that it repeats."""

import json
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from tasks.commands.doctor import CHECKS, cluster_check
from tasks.commands.group import COMMANDS, check_working_directory, rlvr
from tasks.commands.run import CLUSTER_CHECK, PARTS, PIPELINE, RESULTS, run
from tasks.failures import MistakeError
from tests.paths import ROOT

HEAVY = ("flytekit", "pandas", "torch")
LISTED = list(COMMANDS)

HELP = """
import contextlib, io, json, sys
from tasks.commands.group import rlvr

loaded = {}
for words in json.loads(sys.argv[1]):
    with contextlib.redirect_stdout(io.StringIO()) as shown:
        rlvr([*words, "--help"], prog_name="rlvr", standalone_mode=False)
    assert "Options:" in shown.getvalue(), words
    loaded[" ".join(words)] = [name for name in json.loads(sys.argv[2]) if name in sys.modules]
print(json.dumps(loaded))
"""


def test_help_of_every_command_loads_neither_flytekit_nor_pandas_nor_torch():
    ours = [name for name in LISTED if COMMANDS[name].target.startswith("tasks.commands.")]
    pages = [[], *([name] for name in ours), *(["run", name] for name in PARTS), *(["doctor", name] for name in CHECKS)]
    words = [sys.executable, "-c", HELP, json.dumps(pages), json.dumps(HEAVY)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    loaded = json.loads(done.stdout)
    assert len(loaded) == len(pages)
    assert {page: names for page, names in loaded.items() if names} == {}


@pytest.mark.parametrize("name", LISTED)
def test_the_list_of_commands_has_each_ones_first_sentence(name):
    command = rlvr.get_command(click.Context(rlvr), name)
    assert command.get_short_help_str(limit=200).rstrip(".") == COMMANDS[name].summary


def test_a_command_that_does_not_exist_gets_the_nearest_name():
    done = CliRunner().invoke(rlvr, ["comapre"])
    assert done.exit_code == 2
    assert "No such command 'comapre' (did you mean 'compare'?)." in done.output


@pytest.mark.parametrize("name", ["tasks/__init__.py", "workflows.py"])
def test_a_package_of_ours_name_in_the_working_directory_is_one_sentence(tmp_path, name):
    check_working_directory(tmp_path)
    (tmp_path / "tasks").mkdir()
    check_working_directory(tmp_path)
    (tmp_path / name).write_text("")
    with pytest.raises(MistakeError, match=r"has the name of a package of rlvr-flyte.*rename it"):
        check_working_directory(tmp_path)


def test_a_checkout_and_links_to_it_are_no_such_packages(tmp_path, monkeypatch):
    check_working_directory(ROOT)
    (tmp_path / "tasks").symlink_to(ROOT / "tasks")
    check_working_directory(tmp_path)
    (tmp_path / "link").symlink_to(ROOT)
    monkeypatch.setattr("tasks.commands.group.HOME", tmp_path / "link")  # as if Python had been told of the link
    check_working_directory(ROOT)


WORKFLOWS = [PIPELINE, *PARTS.values(), CLUSTER_CHECK]


@pytest.mark.long
@pytest.mark.parametrize("workflow", WORKFLOWS, ids=[workflow.name for workflow in WORKFLOWS])
def test_the_inputs_are_the_workflows(workflow):
    import importlib

    module = importlib.import_module(f"workflows.{Path(workflow.file).stem}")
    inputs = getattr(module, workflow.name).python_interface.inputs_with_defaults
    assert list(inputs) == list(workflow.inputs)
    assert {name for name, (_, default) in inputs.items() if default is None} == set(inputs) & RESULTS.keys()


@pytest.mark.long
@pytest.mark.parametrize("command", [run, *run.commands.values(), cluster_check], ids=lambda command: command.name)
def test_the_other_options_are_those_of_pyflyte_run(command):
    from flytekit.clis.sdk_in_container.pyflyte import main

    theirs = {name: param for param in [*main.params, *main.commands["run"].params] for name in param.opts}
    own = {f"--{name}" for workflow in WORKFLOWS for name in workflow.inputs}
    for param in command.params:
        if param.opts[-1] in own:
            continue
        for name in param.opts:
            same = theirs[name]
            assert (param.multiple, param.is_flag, param.nargs) == (same.multiple, same.is_flag, same.nargs), name


@pytest.fixture
def handed(monkeypatch):
    """The arguments that flytekit's command is given; it runs nothing."""
    calls = []

    @click.command(context_settings={"ignore_unknown_options": True})
    @click.argument("words", nargs=-1, type=click.UNPROCESSED)
    def pyflyte(words):
        calls.append(list(words))

    monkeypatch.setattr("tasks.commands.run.PYFLYTE", f"{__name__}:pyflyte")
    monkeypatch.setitem(globals(), "pyflyte", pyflyte)
    return calls


WHERE = ["--project", "flytesnacks", "--domain", "development"]


def test_a_run_is_handed_to_flytekit(handed):
    assert CliRunner().invoke(rlvr, ["run", "--training", "grpo"]).exit_code == 0
    words = ["run", "--data", "gsm8k", "data", "--model", "m"]
    assert "write --data after data" in CliRunner().invoke(rlvr, words).output
    assert CliRunner().invoke(rlvr, ["run", "data", "--model", "m", "--overwrite-cache", "--env", "A=b"]).exit_code == 0
    assert handed == [
        ["run", *WHERE, str(ROOT / "workflows" / "rlvr.py"), "rlvr", "--training", "grpo"],
        [
            "run",
            "--overwrite-cache",
            *WHERE,
            "--env",
            "A=b",
            str(ROOT / "workflows" / "data.py"),
            "data",
            "--model",
            "m",
        ],
    ]


def test_a_launch_sends_all_files(handed, tmp_path):
    config = tmp_path / "config.yaml"
    config.write_text("")
    words = ["run", "--remote", "-c", str(config), "-p", "rlvr", "--name", "mine", "--label", "a=b", "--label", "c=d"]
    done = CliRunner().invoke(rlvr, words, env={"FLYTE_DEFAULT_DOMAIN": "production"})
    assert done.exit_code == 0, done.output
    options = ["--project", "rlvr", "--domain", "production", "--name", "mine", "--label", "a=b", "--label", "c=d"]
    pipeline = [str(ROOT / "workflows" / "rlvr.py"), "rlvr"]
    assert handed == [["--config", str(config), "run", "--remote", "--copy", "all", *options, *pipeline]]


def test_options_of_executions_are_refused_here(handed):
    done = CliRunner().invoke(rlvr, ["run", "--label", "a=b"])
    assert (done.exit_code, handed) == (2, [])
    assert "--label is an option of executions: add --remote" in done.output


@pytest.mark.parametrize("name", [name for name, part in PARTS.items() if set(part.inputs) & set(RESULTS)])
def test_a_missing_input_has_an_example_of_the_whole_command(name):
    done = CliRunner().invoke(rlvr, ["run", name], prog_name="rlvr")
    assert done.exit_code == 2
    example = done.output.rpartition("An example: ")[2].split()
    assert example[:3] == ["rlvr", "run", name]
    assert example[3::2] == [f"--{option}" for option in PARTS[name].inputs if option in RESULTS]
