"""The examples of docs/data.md are data files that load."""

import re

import pytest

from tasks.config.loading import load_yaml
from tasks.inputs.files import DATA_SPECS, DataFile
from tests.paths import ROOT

EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_on_data_is_a_data_file(tmp_path, number):
    path = tmp_path / "data.yaml"
    path.write_text(EXAMPLES[number])
    assert load_yaml(DataFile, path).sources


def unchecked(path):
    """The sets of the hub whose sources have a comment with `unchecked` before them."""
    sources = re.findall(r"^((?:  #.*\n)*)  - name: .*\n((?:    .*\n)*)", path.read_text(), re.MULTILINE)
    named = [re.findall(r"dataset: ([\w./-]+)", source) for comment, source in sources if "# unchecked:" in comment]
    return {name for names in named for name in names}


def test_the_page_on_data_lists_what_is_unchecked():
    page = (ROOT / "docs" / "data.md").read_text().partition("\n## What no card has confirmed\n")[2]
    listed = re.findall(r"^\| `([\w./-]+)` \|", page.partition("\n## ")[0], re.MULTILINE)
    marked = [unchecked(path) for path in DATA_SPECS.glob("*.yaml")]
    assert sorted(listed) == sorted(set().union(*marked))


def test_the_page_on_data_has_an_example_of_every_part():
    given = {key for example in EXAMPLES for key in re.findall(r"^(\w+):", example, re.MULTILINE)}
    assert {"sources", "evaluation_sets", "cleaning", "difficulty", "mixture"} <= given
