"""Installs the environment of an image on this machine, without Docker, as the image's build does.

`python -m tests.images.environments STAGE FOLDER`, with a stage of images/Dockerfile: its Python, its extras and its
line that installs them are read from there, and it is run on a copy of what the Dockerfile copies.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from tests.paths import ROOT

DOCKERFILE = re.sub(r"\\\n\s*", "", (ROOT / "images" / "Dockerfile").read_text())
STAGES = {stage.split()[2]: stage for stage in re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)[1:]}
"""The text of each stage, by its name."""
ENVIRONMENTS = ("data", "generation-none", "generation-cuda")
"""The stages that install packages; the others are these by another name."""
IMAGES = {
    "none": {"data": "data", "generation": "generation-none", "training": "generation-none"},
    "cuda": {"data": "data", "generation": "generation-cuda", "training": "generation-cuda"},
}
"""By the accelerator and the image: the stage whose environment the image has."""


class Install(NamedTuple):
    """Describes how a stage installs packages: version of Python, arguments of `uv pip install`, file of pins."""

    python: str
    arguments: list[str]
    lock: str


def install_of(stage: str) -> Install:
    """Read a stage's installation from the Dockerfile, without the optional extras."""
    text = STAGES[stage]
    base = text.split()[0]
    [python] = set(re.findall(r"python:?(3\.\d+)", STAGES.get(base, "") + text))
    [line] = re.findall(r"uv pip install --system (.*?) && python3 -m images\.pins (\S+)", text, re.MULTILINE)
    arguments = shlex.split(line[0].replace("${extras:+,$extras}", ""))
    return Install(python, [each for each in arguments if each != "--break-system-packages"], line[1])


def copied() -> list[str]:
    """Return the files and folders that the Dockerfile copies from a checkout."""
    lines = re.findall(r"^COPY (?!--from)(.*) \S+$", DOCKERFILE, re.MULTILINE)
    return [name for names in lines for name in names.split()]


def install(stage: str, folder: Path) -> None:
    """Make the environment of a stage in `folder`.

    If `UV_FIND_LINKS` names a folder of wheels, torch's build for CPUs comes from there instead of PyTorch's index.
    """
    given = install_of(stage)
    arguments = [each for each in given.arguments if not (os.environ.get("UV_FIND_LINKS") and "torch-backend" in each)]
    uv = Path(sys.executable).parent / "uv"
    python = folder.absolute() / "bin" / "python"
    with tempfile.TemporaryDirectory() as root:
        for name in copied():
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
            copy(ROOT / name, Path(root) / name)
        for command in (
            [uv, "venv", "--quiet", "--clear", "--python", given.python, folder.absolute()],
            [uv, "pip", "install", "--quiet", "--compile-bytecode", "--python", python, *arguments],
            [python, "-m", "images.pins", given.lock],
            [sys.executable, "-m", "images.nltk_data", folder.absolute() / "share" / "nltk_data"],
        ):
            subprocess.run(command, cwd=root, check=True)


if __name__ == "__main__":
    install(sys.argv[1], Path(sys.argv[2]))
