"""The code that is sent to a cluster holds what a user added, and nothing that git ignores or that is secret."""

import shutil
import subprocess
from pathlib import Path

import pytest
from flytekit.constants import CopyFileDetection
from flytekit.tools.fast_registration import FastPackageOptions, download_distribution
from flytekit.tools.fast_registration import fast_package as send

from tasks.flyte import patches
from tasks.flyte.archive import ArchiveError, check_size, list_folder_files
from tasks.flyte.ray_job import copy_code
from tasks.sourcing.files import list_files
from tasks.sourcing.loader_specs import JsonlLoader
from tests.paths import ROOT

SENT = {
    "my_data.yaml": "extends: quickstart",
    "my_recipe.yaml": "extends: quickstart",
    "my_rewards.py": "def in_tags(completions, **_): ...",
    "my_rows.jsonl": '{"prompt": "1?"}',
    "rooms/deep/__init__.py": "",
    "rooms/deep/maze.py": "async def maze(prompt, generate): ...",
    "rooms/levels.json": "[1, 2]",
}
"""Files as the tutorial has them, and a package in a folder without a module of its own."""

KEPT = {
    ".env": "JUDGE_KEY=secret",
    ".netrc": "password secret",
    "models/weights.safetensors": "large",
    "outputs/latest/policy/config.json": "{}",
    "rooms/.cache/x": "x",
    "rooms/deep/__pycache__/maze.pyc": "x",
    "tests/test_own.py": "",
}
"""Files that stay behind; git ignores `models`."""


@pytest.fixture(params=["a git checkout", "a folder"])
def project(tmp_path, request):
    """A working directory of a user, where `pyflyte` has loaded a workflow."""
    patches.install()
    root = tmp_path / "project"
    for name, content in {**SENT, **KEPT, ".gitignore": "models/\n"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(content)
    (root / ".flyteignore").write_text((ROOT / ".flyteignore").read_text())
    (root / "rooms" / "loop").symlink_to(root)
    if request.param == "a folder":
        (root / "models" / "weights.safetensors").unlink()  # only git knows of them
    else:
        subprocess.run([shutil.which("git"), "init", "-q"], cwd=root, check=True)
    return root


def names(folder):
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}


def test_what_a_user_added_is_in_the_pod_and_on_the_other_nodes_of_a_cluster(project, tmp_path, monkeypatch):
    every = FastPackageOptions([], copy_style=CopyFileDetection.ALL)
    archive, again = (send(project, folder, options=every) for folder in (tmp_path, project / "outputs"))
    assert Path(archive).name == Path(again).name, "equal files have one archive"
    pod, node = tmp_path / "pod", tmp_path / "node"
    pod.mkdir()
    (pod / "downloads").mkdir()
    (pod / "downloads" / "model.safetensors").write_text("of the home folder")
    download_distribution(str(archive), str(pod))
    assert SENT.keys() <= names(pod)
    assert not KEPT.keys() & names(pod)
    monkeypatch.chdir(pod)
    [rows] = list_files(JsonlLoader(kind="jsonl", path="my_rows.jsonl"), "loader")
    assert rows.filesystem.cat_file(rows.path).decode() == SENT["my_rows.jsonl"], "a source finds them in its pod"
    copy_code(pod, node)
    assert names(node) == SENT.keys()
    assert (node / "rooms" / "levels.json").read_text() == "[1, 2]"


def test_a_checkout_of_this_project_is_sent_without_its_tests_and_documents():
    listed = {path.relative_to(ROOT).as_posix() for path in list_folder_files(ROOT)}
    assert {"tasks/flyte/archive.py", "data_specs/quickstart.yaml", "workflows/rlvr.py"} <= listed
    assert not any(name.startswith((".venv/", "outputs/", ".git/")) for name in listed)


def test_an_archive_that_is_too_large_is_refused_with_its_largest_entries(tmp_path):
    (tmp_path / "models" / "base").mkdir(parents=True)
    for name, size in (("models/base/weights", 60_000_000), ("rows.jsonl", 2_000_000), ("my.py", 10)):
        with (tmp_path / name).open("wb") as file:
            file.truncate(size)
    largest = r"the largest are models/base \(60\.0 MB\), rows\.jsonl \(2\.0 MB\), my\.py"
    with pytest.raises(ArchiveError, match=rf"are 62\.0 MB, and at most 50 are sent; {largest}"):
        check_size(tmp_path, list_folder_files(tmp_path))
