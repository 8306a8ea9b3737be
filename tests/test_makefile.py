"""What `make` says on a machine that the project does not run on."""

import os
import shutil
import subprocess

import pytest

from tests.paths import ROOT


@pytest.mark.parametrize("machine", ["Darwin arm64", "Linux aarch64"])
def test_on_another_system_one_sentence_comes_before_any_installation(tmp_path, machine):
    if shutil.which("make") is None:
        pytest.skip("there is no make here")
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "uname").write_text(f"#!/bin/sh\necho {machine}\n")
    (programs / "uname").chmod(0o755)
    shutil.copy(ROOT / "Makefile", tmp_path)
    for name in ("pyproject.toml", "images/lock-cpu.txt", "images/overrides-cpu.txt", "images/nltk-data.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    done = subprocess.run(
        ["make", "demo"],  # noqa: S607
        cwd=tmp_path,
        env=os.environ | {"PATH": f"{programs}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert done.returncode != 0
    sentence, *_ = done.stderr.splitlines()
    assert sentence.startswith(f"rlvr-flyte runs on Linux on x86-64, and this is {machine}: use WSL 2")
    assert not (tmp_path / ".venv").exists()


@pytest.mark.parametrize(("accelerator", "suffix"), [("none", "-cpu"), ("cuda", "")])
@pytest.mark.parametrize("target", ["images", "register"])
def test_images_of_both_kinds_are_built_and_registered_under_names_of_their_own(tmp_path, target, accelerator, suffix):
    done = dry_run(tmp_path, target, f"ACCELERATOR={accelerator}")
    assert done.returncode == 0, done.stderr
    assert f"rlvr-data:v1{suffix}" in done.stdout.replace("$name", "data")
    if target == "images":
        assert f"--build-arg accelerator={accelerator}" in done.stdout


def test_an_accelerator_without_images_is_one_sentence(tmp_path):
    refused = subprocess.run(
        ["make", "images", "REGISTRY=registry.example", "ACCELERATOR=rocm"],  # noqa: S607
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert refused.returncode != 0
    assert refused.stderr.splitlines()[0] == "ACCELERATOR = rocm is neither cuda nor none"


def dry_run(tmp_path, target, *variables):
    """Have `make` print the commands of a target without running them."""
    config = tmp_path / "config.yaml"
    config.touch()
    given = ["REGISTRY=registry.example", "TAG=v1", f"CONFIG={config}", *variables]
    command = ["make", "-n", "--no-print-directory", target, *given]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_the_demo_names_its_stages_and_its_duration_before_the_first(tmp_path):
    first, *_ = dry_run(tmp_path, "demo").stdout.splitlines()[-2:]
    assert first.startswith("echo ")
    stages = [first.find(stage) for stage in ("source", "clean", "difficulty", "mix", "train", "evaluate", "report")]
    assert stages[0] > -1
    assert stages == sorted(stages)
    assert "9 minutes" in first
    assert "8.9 minutes" in (ROOT / "README.md").read_text()


def test_gpu_check_hands_its_variables_to_the_command(tmp_path):
    done = dry_run(
        tmp_path, "gpu-check", "ONLY=A,time sharing", "VARIANTS=plain", "JSON=gpu.json", "GPU_PYTHON=python3"
    )
    words = done.stdout.split()
    assert " ".join(words) == (
        'python3 -m tasks.gpu_check --only "A,time sharing" --variants "plain" --json "gpu.json"'
    )
    done = dry_run(tmp_path, "gpu-check", "TABLE=gpu.json", "GPU_PYTHON=python3")
    assert done.stdout.split() == ["python3", "-m", "tasks.gpu_check.page", '"gpu.json"']
