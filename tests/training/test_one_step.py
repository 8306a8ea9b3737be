"""What one must read to understand a training step: the files that docs/architecture.md lists, and few calls."""

import json
import os
import re
import subprocess
import sys

import pytest

from tests.paths import ROOT

pytestmark = pytest.mark.engine

MOST_FILES, MOST_CALLS = 22, 7
RECIPE = "tasks/recipe/"
"""What the page leaves out."""


@pytest.fixture(scope="module")
def recorded(tiny_model, tmp_path_factory):
    """The files and calls of a step of the tiny model."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.one_step", str(tiny_model), str(tmp_path_factory.mktemp("run"))],
        env=os.environ | {"CUDA_VISIBLE_DEVICES": ""},
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_the_page_lists_the_files_of_a_step_in_the_order_in_which_it_enters_them(recorded):
    page = (ROOT / "docs" / "architecture.md").read_text()
    [section] = re.findall(r"^## One step, in reading order$(.*?)^## ", page, re.MULTILINE | re.DOTALL)
    listed = re.findall(r"^\d+\. `([\w/]+\.py)`: ", section, re.MULTILINE)
    folders = (ROOT / "tasks" / "training", ROOT / "tasks")
    paths = [next(folder / name for folder in folders if (folder / name).exists()) for name in listed]
    entered = [file for file in recorded["files"] if not file.startswith(RECIPE)]
    assert [str(path.relative_to(ROOT)) for path in paths] == entered
    assert len(listed) <= MOST_FILES
    assert "`recipe/`" in section


def test_few_calls_lead_from_the_controller_to_the_loss(recorded):
    first, *calls = recorded["calls"]
    assert first == "tasks/training/control/controller.py _train"
    assert calls[-1] == "tasks/objective/loss.py policy_loss"
    assert len(calls) <= MOST_CALLS, calls
