"""The environment that docs/environments.md works through, and the options that its table names."""

import asyncio
import inspect
import re
from importlib import import_module

import pytest
import yaml

from tasks.environments.tools import described, toolbox
from tasks.inputs.files import DataFile
from tasks.sourcing.environment_options import EnvironmentOptions
from tests.environments.scripted import play
from tests.paths import ROOT

PAGE = (ROOT / "docs" / "environments.md").read_text()
NAMES = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)


def count_up(*texts, **options):
    program = re.search(r"^```python\n# my_games\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    names = {}
    exec(program, names)  # noqa: S102 - the page's own
    return play(names["count_up"], texts, **options)


def test_the_environment_of_the_page_counts_up():
    played = count_up("1", "3", "5", target=5)
    assert played.contents == ["2", "4"]
    assert (played.result.reward, played.result.passed) == (1.0, True)
    assert count_up("1", "4", target=5).result.reward == pytest.approx(3 / 5)
    assert count_up("1", "3", "5", target=5, turns=2).result.passed is False


def test_the_data_file_of_the_page_names_it():
    text = re.search(r"^```yaml\nsources:\n.*?^```", PAGE, re.MULTILINE | re.DOTALL)[0].strip("`").removeprefix("yaml")
    data = DataFile.model_validate({"name": "counting", **yaml.safe_load(text)})
    assert data.sources[0].environment.path == "my_games.count_up"


def test_the_tool_of_the_page_is_described_and_called(tmp_path, monkeypatch):
    program = re.search(r"^```python\n# my_tools\.py\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)[1]
    (tmp_path / "my_tools.py").write_text(program)
    monkeypatch.syspath_prepend(tmp_path)
    line = re.search(r"^    environment: (\{name: call_tools.*\})$", PAGE, re.MULTILINE)[1]
    options = EnvironmentOptions.model_validate(yaml.safe_load(line))
    box = toolbox([described(path) for path in options.tools], None, None, None)
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
