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
