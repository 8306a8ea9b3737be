"""The examples of docs/data.md are data files that load."""

import re

import pytest

from tasks.config import load_yaml
from tasks.inputs.files import DataFile
from tests.paths import ROOT

EXAMPLES = re.findall(r"^```yaml\n(.*?)^```$", (ROOT / "docs" / "data.md").read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_an_example_of_the_page_on_data_is_a_data_file(tmp_path, number):
    path = tmp_path / "data.yaml"
    path.write_text(EXAMPLES[number])
    assert load_yaml(DataFile, path).sources


def test_the_page_on_data_has_an_example_of_every_part():
    given = {key for example in EXAMPLES for key in re.findall(r"^(\w+):", example, re.MULTILINE)}
    assert {"sources", "evaluation_sets", "cleaning", "difficulty", "mixture"} <= given
