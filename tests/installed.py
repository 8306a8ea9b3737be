"""The wheel in a fresh environment, by the README's commands, from an empty folder to a trained policy.

`make test-installed` runs it: it installs 4 GB, from the package index or from the folder that PIP_FIND_LINKS names.
"""

import os
import re
import shutil
import subprocess
import venv
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.workflows.test_wheel import wheel  # noqa: F401 (a fixture)

PAGE = (ROOT / "README.md").read_text()


@pytest.fixture(scope="module")
def shell(wheel, tmp_path_factory):  # noqa: F811
    """Runs lines of a shell in a folder that has the wheel alone, in an environment with the README's installation."""
    folder = tmp_path_factory.mktemp("empty")
    shutil.copy(wheel, folder)
    venv.create(folder.parent / "environment", with_pip=True)
    programs = folder.parent / "environment" / "bin"
    kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_", "HTTP", "https_"))}
    environment = {**kept, "HOME": str(folder), "VIRTUAL_ENV": str(programs.parent)}
    environment |= {"PATH": f"{programs}:{os.environ['PATH']}", "UV_LINK_MODE": "copy"}

    def run(lines: str) -> str:
        done = subprocess.run(
            ["/bin/bash", "-ec", lines], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, timeout=3000
        )
        assert done.returncode == 0, lines
        return done.stdout

    [block] = re.findall(r"^```\n(pip install uv .*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    if links := os.environ.get("PIP_FIND_LINKS"):
        environment["UV_FIND_LINKS"] = links
        block = block.replace("--torch-backend=cpu ", "")  # PyTorch's own index is not asked
    assert Path(wheel).name in block
    run(block)
    return run


@pytest.mark.timeout(6000)
def test_the_tutorial_runs_from_the_wheel_in_an_empty_folder(shell):
    assert "my_recipe.yaml" in shell("rlvr new && python make_rows.py")
    assert shell("rlvr check my_recipe.yaml").startswith("checked ")
    assert "pass rate" in shell("rlvr run --training my_recipe.yaml")
    assert "sums" in shell("rlvr trace --source sums --row 0")
    shell("rlvr run --training my_recipe.yaml")  # the same from the cache, in another folder
    assert "no option differs" in shell("rlvr compare outputs/2*")
    assert "responses in" in shell("rlvr view --bundle view")
    assert "questions" in shell("rlvr show")
