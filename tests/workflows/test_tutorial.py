"""The tutorial, followed to the letter in an empty folder beside the checkout's own."""

import io
import os
import re
import shlex
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from tests.flyte.admin_stand_in import admin
from tests.paths import ROOT
from tests.programs import started

PAGE = (ROOT / "docs" / "tutorial.md").read_text()
FILES = dict(re.findall(r"^```\w+\n# (\S+)\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL))
LINKED = ("workflows", "tasks", "images", "data_specs")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """The tutorial's files, in a folder that sees the checkout's packages."""
    folder = tmp_path_factory.mktemp("tutorial")
    for name in LINKED:
        (folder / name).symlink_to(ROOT / name)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    return folder


def run(folder: Path, command: str, timeout: int = 120) -> str:
    """The command's output; it is run as in the checkout, with the environment that the page sets."""
    program, *words = shlex.split(command)
    environment = os.environ | {"FLYTE_SDK_LOCAL_SANDBOX": str(folder / "outputs" / "flyte"), "PYTHONPATH": str(folder)}
    done = subprocess.run(
        [*started(program), *words], cwd=folder, env=environment, capture_output=True, text=True, timeout=timeout
    )
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return done.stdout


def command(beginning: str) -> str:
    """The page's one command that begins so."""
    (line,) = re.findall(rf"^({re.escape(beginning)}.*)$", PAGE, re.MULTILINE)
    return line


@pytest.mark.long
def test_its_reward_gives_a_score_and_its_files_are_read(folder, monkeypatch):
    from tasks.config.loading import load_yaml
    from tasks.inputs.files import DataFile, EvaluationFile, Recipe
    from tasks.inputs.preflight import apply_training_sampling, check_together

    run(folder, command("python make_rows.py"))
    assert len((folder / "my_rows.jsonl").read_text().splitlines()) == 60
    assert "value=1.0" in run(folder, command("python -c"))
    monkeypatch.chdir(folder)
    data, recipe = load_yaml(DataFile, folder / "my_data.yaml"), load_yaml(Recipe, folder / "my_recipe.yaml")
    assert (Path(recipe.data).name, recipe.steps, data.sources[0].rewards[0].function) == (
        "my_data.yaml",
        4,
        "my_rewards.in_tags",
    )
    check_together(apply_training_sampling(data, recipe), recipe, recipe.load_companion(EvaluationFile))


@pytest.mark.long
def test_its_command_for_a_cluster_sends_the_rows_and_the_reward(tmp_path):
    folder = tmp_path / "checkout"
    for name in LINKED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / ".flyteignore", folder)
    for name, text in FILES.items():
        (folder / name).write_text(text)
    run(folder, command("python make_rows.py"))
    with admin(folder) as backend:
        for sent in ("sent", "in storage"):
            assert f"{sent:<11} my_rows.jsonl" in run(folder, command("rlvr run --remote").partition("#")[0])
        rows, archive = (
            next(content for address, content in backend.uploads.items() if address.endswith(ending))
            for ending in (".jsonl", ".tar.gz")
        )
    assert rows == (folder / "my_rows.jsonl").read_bytes()
    with tarfile.open(fileobj=io.BytesIO(archive)) as code:
        assert {"my_rewards.py", "my_recipe.yaml", "workflows/rlvr.py"} <= set(code.getnames())


@pytest.mark.complete
@pytest.mark.pipeline
@pytest.mark.engine
@pytest.mark.timeout(3000)
def test_its_run_ends_with_rows_that_were_trained_on(folder):
    run(folder, command("python make_rows.py"))
    printed = run(folder, command("rlvr run --training"), timeout=2700)
    assert "pass rate" in printed
    header, *rows = run(folder, command("python trained_rows.py")).splitlines()
    assert header.split() == ["step", "prompt_id", "source", "row", "scores"]
    assert len(rows) == 4 * 4
    assert "sums" in run(folder, command("rlvr trace"))
