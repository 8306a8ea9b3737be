"""The process that waits for a pod's task logs no error at its end: it imports of this project only a plugin."""

import logging
import os
import subprocess
import sys
import tomllib

import pytest

from tasks.machine.quiet import ROUTINE
from tests.paths import ROOT

PLUGIN = "rlvr_flytekit_plugin"

PARENT = """
import asyncio, sys
import flytekit.bin.entrypoint
from flytekit.utils.asyn import loop_manager

async def download():
    import aiohttp

    flytekit.session = aiohttp.ClientSession()  # as s3fs leaves it

loop_manager.run_sync(download)
assert "tasks" not in sys.modules
"""


@pytest.fixture
def installed(tmp_path):
    """A folder that has the entry points of this project, as its installation has them."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    [(name, module)] = project["entry-points"]["flytekit.plugins"].items()
    metadata = tmp_path / "rlvr_of_the_test-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: rlvr-of-the-test\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[flytekit.plugins]\n{name} = {module}\n")
    (tmp_path / f"{PLUGIN}.py").write_text((ROOT / f"{PLUGIN}.py").read_text())
    return tmp_path


def log_of(folder, **environment):
    variables = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(folder), **environment}
    done = subprocess.run([sys.executable, "-c", PARENT], capture_output=True, text=True, env=variables, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.long
def test_the_session_of_a_download_is_not_logged_as_an_error(installed):
    assert "Unclosed client session" in log_of(installed, RLVR_VERBOSE="1")
    assert "Unclosed" not in log_of(installed)


def test_it_drops_what_is_dropped_elsewhere_and_nothing_else():
    namespace = {}
    exec((ROOT / f"{PLUGIN}.py").read_text().partition("if os.environ")[0], namespace)  # noqa: S102 our own
    assert namespace["ROUTINE"] == ROUTINE["flytekit"]
    record = logging.LogRecord("flytekit", logging.ERROR, "", 1, "the storage %s", ("is away",), None)
    assert namespace["is_no_routine_line"](record)


def test_a_process_leaves_no_temporary_folders_of_flytekit(tmp_path):
    code = "import tasks.flyte.stages, flytekit.core.data_persistence as d; assert d.flyte_tmp_dir"
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        env=os.environ | {"TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("flyte")] == []
