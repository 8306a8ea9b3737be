"""The page of constraints is the one that the code makes, and lists all of them."""

import re

from tasks.verifiers.instructions.arguments import SCHEMAS
from tasks.verifiers.instructions.constraints_page import page
from tests.paths import ROOT


def test_the_page_is_that_of_the_code():
    assert (ROOT / "docs" / "constraints.md").read_text() == page(), "make reference"


def test_every_constraint_has_a_row():
    assert sorted(re.findall(r"^\| `([\w:-]+)` \|", page(), re.MULTILINE)) == sorted(SCHEMAS)
