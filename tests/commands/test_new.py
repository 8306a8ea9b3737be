"""`rlvr new`: the files of the documents, in a folder of the user."""

import re

import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.commands.new import EXAMPLES, NAMES
from tests.paths import ROOT


def invoke(*words):
    return CliRunner().invoke(rlvr, ["new", *map(str, words)])


def blocks(page):
    text = (ROOT / "docs" / page).read_text()
    return dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", text, re.MULTILINE | re.DOTALL))


@pytest.mark.parametrize(("example", "page"), [("tutorial", "tutorial.md"), ("environment", "environments.md")])
def test_the_files_are_those_of_the_page(example, page, tmp_path):
    folder = tmp_path / "mine"
    assert invoke(folder, "--example", example).exit_code == 0
    written = {path.name: path.read_text() for path in folder.iterdir()}
    shown = blocks(page)
    if example == "tutorial":
        assert written == shown
    else:
        rows = written.pop("rows.jsonl")
        assert f"```json\n{rows}```" in (ROOT / "docs" / page).read_text()
        assert written.items() <= shown.items()


def test_every_example_is_offered():
    assert {path.name for path in EXAMPLES.iterdir() if path.is_dir()} == NAMES.keys()


def test_a_file_that_exists_is_not_replaced(tmp_path):
    (tmp_path / "my_data.yaml").write_text("mine")
    done = invoke(tmp_path)
    assert f"{tmp_path / 'my_data.yaml'} exists" in str(done.exception)
    assert [path.name for path in tmp_path.iterdir()] == ["my_data.yaml"]
    assert (tmp_path / "my_data.yaml").read_text() == "mine"
