"""The environment that docs/environments.md works through, and the options that its table names."""

import asyncio
import inspect
import os
import re
import subprocess
import sys
from importlib import import_module

import pytest
import yaml

from tasks.config.loading import SpecError, load_yaml
from tasks.environments.tools import build_toolbox, describe_tool
from tasks.inputs.files import DataFile
from tasks.inputs.play_environment import play_episodes
from tasks.sourcing.environment_options import EnvironmentOptions
from tests.environments.scripted import play as scripted
from tests.environments.test_episode import Policy
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "environments.md").read_text()
NAMES = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def count_up(*texts, **options):
    program = re.search(r"^```python\n# my_games\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    names = {}
    exec(program, names)  # noqa: S102 - the page's own
    return scripted(names["count_up"], texts, **options)


def test_the_environment_of_the_page_counts_up():
    played = count_up("1", "3", "5", target=5)
    assert played.contents == ["2", "4"]
    assert (played.result.reward, played.result.passed) == (1.0, True)
    assert count_up("1", "4", target=5).result.reward == pytest.approx(2 / 5)
    assert count_up("2", target=5).result.reward == 0
    assert count_up("1", "3", "5", target=5, turns=2).result.passed is False


@pytest.mark.parametrize("max_tokens", range(4, 60, 5))
def test_the_environment_of_the_page_has_a_reward_at_every_limit(tmp_path, monkeypatch, tokenizer, play, max_tokens):
    (tmp_path / "my_games.py").write_text(block("# my_games.py"))
    monkeypatch.syspath_prepend(tmp_path)
    policy = Policy(tokenizer, ("1", "3", "5", "7", "9"))
    completion = play("count_up", policy, module="my_games", max_tokens=max_tokens, columns={"target": 9})
    assert completion.end.reward is not None


def block(first_line):
    """A block of the page that begins with this line."""
    return re.search(rf"^```\w+\n({re.escape(first_line)}\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]


def test_the_commands_of_the_page_play_its_data_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("my_games.py", "counting.yaml"):
        (tmp_path / name).write_text(block(f"# {name}"))
    (tmp_path / "rows.jsonl").write_text(re.search(r"^```json\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1])
    data = load_yaml(DataFile, tmp_path / "counting.yaml")
    assert data.sources[0].environment.path == "my_games.count_up"
    [command] = re.findall(r"^rlvr (play .*)$", PAGE, re.MULTILINE)
    run = subprocess.run(
        [sys.executable, "-m", "tasks.commands", *command.split()],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    )
    shown = re.search(r"^```text\n(counting\n.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    assert [line.strip() for line in run.stdout.splitlines()] == [line.strip() for line in shown.splitlines()]


def test_the_data_file_of_the_package_validates(tmp_path):
    (tmp_path / "tasks.yaml").write_text(block("# tasks.yaml"))
    source = load_yaml(DataFile, tmp_path / "tasks.yaml").sources[0]
    assert source.environment.path == "tasks.environments.verifiers_package.verifiers_package"
    assert set(source.environment.options) | set(source.environment.columns) == {"env", "task"}


def test_a_data_file_without_an_environment_has_nothing_to_play():
    with pytest.raises(SpecError, match="no source has an environment to play"):
        play_episodes(load_yaml(DataFile, ROOT / "data_specs" / "quickstart.yaml"), ["1"])


def test_the_tool_of_the_page_is_described_and_called(tmp_path, monkeypatch):
    program = re.search(r"^```python\n# my_tools\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "my_tools.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    line = re.search(r"^    environment: (\{name: call_tools.*\})$", PAGE, re.MULTILINE)[1]
    options = EnvironmentOptions.model_validate(yaml.safe_load(line))
    box = build_toolbox([describe_tool(path) for path in options.tools], None, None, None)
    [call] = box.calls_in('<tool_call>{"name": "exchange", "arguments": {"amount": 2, "rate": 1.5}}</tool_call>')
    assert asyncio.run(box.result_of(call)) == "3.0"


def test_the_table_has_all_environments_that_come_with_the_project():
    folder = ROOT / "tasks" / "environments"
    given = {path.stem for path in folder.glob("*.py") if f"\nasync def {path.stem}(prompt" in path.read_text()}
    given |= {path.stem for path in folder.glob("*.py") if f"\nasync def {path.stem}(\n" in path.read_text()}
    assert set(NAMES) == given


@pytest.mark.parametrize("name", NAMES)
def test_the_table_names_every_option(name):
    function = getattr(import_module(f"tasks.environments.{name}"), name)
    options = {
        parameter.name
        for parameter in inspect.signature(function).parameters.values()
        if parameter.kind is inspect.Parameter.KEYWORD_ONLY
    }
    row = next(line for line in PAGE.splitlines() if line.startswith(f"| `{name}` |"))
    column = row.split(" | ")[2]
    named = set(re.findall(r"`(\w+)(?:: [^`]+)?`", column))
    assert options <= named
    for option, default in re.findall(r"`(\w+): ([^`]+)`", column):
        assert str(inspect.signature(function).parameters[option].default).lower() == default
