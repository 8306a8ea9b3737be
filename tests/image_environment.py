"""A Python environment with what an image of this project installs and nothing else, within seconds.

It is made of links into the environment that runs the tests: to the distributions that the project and an extra of
pyproject.toml require, and those that these require in turn, by their installed metadata. `make test-images` installs
environments from the package index instead.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
import sysconfig
import tomllib
import venv
from collections import defaultdict
from importlib.metadata import Distribution
from pathlib import Path, PurePath

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.paths import ROOT

PROJECT = "rlvr-flyte"


def required(*extras: str) -> set[str]:
    """The installed distributions that `pip install '.[extras]'` would ask for.

    What is required and not installed is passed over: pyproject.toml overrides some requirements of others.
    """
    installed = _installed()
    found: set[tuple[str, str]] = set()
    waiting = [(PROJECT, extra) for extra in ("", *extras)]
    while waiting:
        name, extra = waiting.pop()
        if (name, extra) in found or name not in installed:
            continue
        found.add((name, extra))
        for requirement in map(Requirement, _requires(name, extra)):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                waiting += [(canonicalize_name(requirement.name), each) for each in ("", *requirement.extras)]
    return {name for name, _ in found} - {PROJECT}


def _installed() -> dict[str, Distribution]:
    """By name; not those that setuptools brings for itself, and puts on the path of a process that imports it."""
    here = sysconfig.get_path("purelib")
    return {canonicalize_name(each.name): each for each in importlib.metadata.distributions(path=[here])}


def _requires(name: str, extra: str) -> list[str]:
    if name != PROJECT:
        return importlib.metadata.requires(name) or []
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project["optional-dependencies"][extra] if extra else project["dependencies"]


def build(folder: Path, *extras: str) -> Path:
    """The environment of an image at `folder`: its folder of programs, `bin`."""
    venv.create(folder, symlinks=True)
    site = folder / "lib" / f"python3.{sys.version_info.minor}" / "site-packages"
    installed = _installed()
    kept = required(*extras)
    owners: dict[PurePath, set[str]] = defaultdict(set)
    for name, distribution in installed.items():
        for file in distribution.files or ():
            for path in (file, *file.parents):
                owners[PurePath(path)].add(name)
    for name in kept:
        for file in installed[name].files or ():
            if file.parts[0] == "..":
                _install(installed[name], file, Path(os.path.normpath(site / file)), folder)
            else:
                # The outermost folder that holds nothing else; the namespace `google`, say, is shared with others.
                whole = [path for path in reversed(file.parents) if path.parts and owners[PurePath(path)] <= kept]
                _link(site / (whole or [file])[0], Path(str(installed[name].locate_file((whole or [file])[0]))))
    return folder / "bin"


def _install(distribution: Distribution, file: PurePath, target: Path, folder: Path) -> None:
    """A program, started by this environment's Python, or another file outside of site-packages."""
    source = Path(str(distribution.locate_file(file))).resolve()
    first, _, rest = source.read_bytes().partition(b"\n") if source.is_file() else (b"", b"", b"")
    if target.parent.name == "bin" and first.startswith(b"#!") and b"python" in first:
        target.write_bytes(f"#!{folder}/bin/python\n".encode() + rest)
        target.chmod(0o755)
    elif target.is_relative_to(folder):
        _link(target, source)


def _link(target: Path, source: Path) -> None:
    if source.exists() and not target.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(source)
