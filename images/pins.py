"""Checks the pinned versions of all distributions in this project's environments, which `make lock` resolves.

`lock-cpu.txt` is for machines without a GPU and for the data image, `lock-cuda.txt` for the generation and training
images. Environments are installed with them as constraints, so that each contains only what its extras need, in the
pinned versions.

`python -m images.pins` compares both files with pyproject.toml. `python -m images.pins FILE` compares the current
environment with one of them. Each difference is printed as a line, and the exit status is 1 if there are any.
"""

from __future__ import annotations

import importlib.metadata
import sys
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

PROJECT = "rlvr-flyte"
INSTALLERS = {"pip", "uv", "wheel"}
"""Distributions that come with an image's base or that install the others. They are not pinned."""


class Lock(NamedTuple):
    """A lock file, the Python version that it was resolved for, and the extras of pyproject.toml in it."""

    path: str
    python: str
    extras: tuple[str, ...]


CPU = Lock("images/lock-cpu.txt", "3.11", ("cpu", "dev", "bench", "harness", "wandb", "mlflow"))
CUDA = Lock("images/lock-cuda.txt", "3.12", ("gpu", "liger", "harness", "wandb", "mlflow"))
LOCKS = (CPU, CUDA)

DIFFERENT = {"apache-tvm-ffi": "the CUDA build of vLLM 0.32.0 requires 0.1.11, the one for CPUs any"}
"""Distributions whose version differs between the files, with the reason. Builds of torch differ only in their label.
"""


def read(path: Path) -> dict[str, str]:
    """Return the pinned versions in a file, by canonical name of the distribution."""
    pins = (line.partition("#")[0].split("==") for line in path.read_text(encoding="utf-8").splitlines())
    return {pin[0].strip(): pin[1].strip() for pin in pins if len(pin) == 2}


def required(project: Mapping[str, Any], lock: Lock) -> Iterator[Requirement]:
    """Yield the requirements of the `project` table in pyproject.toml with the extras of a lock, on Linux x86-64."""
    machine = {
        "sys_platform": "linux",
        "platform_machine": "x86_64",
        "python_version": lock.python,
        "python_full_version": f"{lock.python}.0",
    }
    waiting = ["", *lock.extras]
    for extra in waiting:
        texts = project["optional-dependencies"][extra] if extra else project["dependencies"]
        for requirement in map(Requirement, texts):
            if canonicalize_name(requirement.name) == PROJECT:
                waiting += sorted(requirement.extras - set(waiting))
            elif requirement.marker is None or requirement.marker.evaluate(machine):
                yield requirement


def disagreements(project: Mapping[str, Any], lock: Lock, pins: Mapping[str, str]) -> list[str]:
    """Return a message for each requirement that is missing from a lock or contradicts it."""
    problems = []
    for requirement in required(project, lock):
        version = pins.get(canonicalize_name(requirement.name))
        if version is None:
            problems.append(f"pyproject.toml requires {requirement}, which {lock.path} lacks: make lock")
        elif not requirement.specifier.contains(version, prereleases=True):
            problems.append(f"pyproject.toml requires {requirement}, and {lock.path} has {version}: make lock")
    return problems


def differences(one: Mapping[str, str], other: Mapping[str, str]) -> list[str]:
    """Return a message for each distribution with different releases in two locks, except `DIFFERENT`.

    Labels of builds (`+cpu`) are not compared.
    """
    return [
        f"{name} is {one[name]} in {CPU.path} and {other[name]} in {CUDA.path}: pin it in pyproject.toml, or "
        "give the reason in images/pins.py"
        for name in sorted((one.keys() & other.keys()) - DIFFERENT.keys())
        if Version(one[name]).public != Version(other[name]).public
    ]


def departures(installed: Mapping[str, str], pins: Mapping[str, str], name: str) -> list[str]:
    """Return a message for each installed distribution that is missing from the lock `name` or contradicts it."""
    return [
        f"{distribution} {version} is installed, and {name} "
        + (f"has {pins[distribution]}" if distribution in pins else "lacks it")
        for distribution, version in sorted(installed.items())
        if distribution not in {PROJECT, *INSTALLERS} and pins.get(distribution) != version
    ]


def installed(path: list[str] | None = None) -> dict[str, str]:
    """Return the versions of the distributions found in `path`, by default in Python's own path."""
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions(path=sys.path if path is None else path):
        versions.setdefault(canonicalize_name(distribution.name), distribution.version)
    return versions


def main(files: list[str]) -> int:
    """Print each difference between pyproject.toml or this environment and the locks, and return the exit status."""
    if files:
        problems = [problem for file in files for problem in departures(installed(), read(Path(file)), file)]
    else:
        project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))["project"]
        pins = [read(Path(lock.path)) for lock in LOCKS]
        problems = [each for lock, of in zip(LOCKS, pins, strict=True) for each in disagreements(project, lock, of)]
        problems += differences(*pins)
    for problem in problems:
        print(problem, file=sys.stderr)
    return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
