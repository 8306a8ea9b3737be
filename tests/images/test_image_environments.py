"""The environments of the images import every module, and the one for CUDA refuses to start an engine without a GPU."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.images.environments import DOCKERFILE, ENVIRONMENTS, IMAGES, STAGES, copied, install_of
from tests.paths import ROOT

INSTALLED = pytest.mark.skipif("RLVR_IMAGES" not in os.environ, reason="the environments of images: make test-images")

IMPORTS = """
import importlib, pathlib, tasks
[folder] = tasks.__path__
for file in sorted(pathlib.Path(folder).rglob("[!_]*.py")):
    importlib.import_module(".".join(("tasks", *file.relative_to(folder).with_suffix("").parts)))
"""
"""Imports each module of the project; a module that is missing is an error."""

ENGINE = """
import pathlib, sys
from tasks.generation.config import EngineConfig
from tasks.generation.engine_output import EngineOutput
from tasks.generation.engine_start import load
from tasks.generation.interface import EngineUse
load(sys.argv[1], EngineConfig(), EngineOutput(pathlib.Path("output")), EngineUse())
"""


def python(stage, code, *arguments, cwd, **variables):
    """Run a program in the environment of a stage, outside of the checkout."""
    program = Path(os.environ["RLVR_IMAGES"]) / stage / "bin" / "python"
    given = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"} | variables
    return subprocess.run([program, "-c", code, *arguments], cwd=cwd, env=given, capture_output=True, text=True)


def test_the_stages_that_install_are_those_of_the_images():
    assert {stage for stages in IMAGES.values() for stage in stages.values()} == set(ENVIRONMENTS)
    installing = {name for name, text in STAGES.items() if "uv pip install" in text}
    assert installing == set(ENVIRONMENTS)
    assert {install_of("data").python, install_of("generation-none").python} == {"3.11"}
    assert install_of("generation-cuda").python == "3.12"
    assert all((ROOT / name).exists() for name in copied())
    assert "COPY --from=data /root /root" in DOCKERFILE


@INSTALLED
@pytest.mark.timeout(600)
@pytest.mark.parametrize("stage", ["generation-none", "generation-cuda"])
def test_every_module_imports_in_an_image_with_engines(stage, tmp_path):
    done = python(stage, IMPORTS, cwd=tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


@INSTALLED
def test_an_engine_of_the_cuda_image_says_on_a_pod_without_a_gpu_which_image_it_needs(tiny_model, tmp_path):
    pod = {"FLYTE_INTERNAL_EXECUTION_ID": "a1b2", "FLYTE_INTERNAL_IMAGE": "registry.example/rlvr-generation:v1"}
    done = python("generation-cuda", ENGINE, str(tiny_model), cwd=tmp_path, **pod, RLVR_ACCELERATOR="cuda")
    assert "ImageError: image registry.example/rlvr-generation:v1 has engines for GPUs" in done.stderr
    untold = python("generation-cuda", ENGINE, str(tiny_model), cwd=tmp_path, **pod)
    assert "Device string must not be empty" in untold.stdout + untold.stderr
