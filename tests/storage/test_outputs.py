"""The folders of runs: commands that are refused leave none behind."""

import os
import subprocess
import sys

import pytest

from tasks.storage.locations import outputs_folder, resolve_folder, sandbox_folder
from tasks.storage.outputs import prevent_pruning
from tests.paths import ROOT


@pytest.fixture
def elsewhere(tmp_path, monkeypatch):
    """A working directory in which no command was run before."""
    for name in ("RLVR_OUTPUTS", "RLVR_RUNS", "FLYTE_SDK_LOCAL_SANDBOX"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_folders_that_stay_empty_are_removed_and_others_are_not(elsewhere):
    with prevent_pruning():
        assert resolve_folder("").is_dir()
        assert sandbox_folder().is_dir()
    assert list(elsewhere.iterdir()) == []
    outputs_folder().mkdir()
    with prevent_pruning():
        (resolve_folder("") / "result").touch()
    assert [path.name for path in outputs_folder().iterdir()] == ["runs"]
    with prevent_pruning():
        pass
    assert (resolve_folder("") / "result").exists()


def test_folders_that_were_there_before_stay(elsewhere):
    outputs_folder().mkdir()
    with prevent_pruning():
        pass
    assert list(elsewhere.iterdir()) == [outputs_folder()]


@pytest.mark.complete
@pytest.mark.long
def test_a_run_that_is_refused_leaves_no_folder(elsewhere):
    own = {name: value for name, value in os.environ.items() if not name.startswith(("RLVR_", "FLYTE_"))}
    environment = own | {"PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tasks.commands", "run", "--training", "nowhere"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode != 0
    assert "nowhere" in done.stderr
    assert list(elsewhere.rglob("*")) == []
