"""Finds the Python interpreter that runs programs, and the files of it and its packages that the sandbox needs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from glob import glob

ANSWER_SECONDS = 60.0
"""Seconds that the interpreter may take to report its files."""

_ASK = r"""
import importlib.metadata as metadata, json, os, re, sys, sysconfig

def parts_of(distribution):
    # Folders and modules at the top of what it installed, but for scripts and what lies elsewhere.
    tops = {file.parts[0] for file in distribution.files or () if file.parts[0] not in ("..", "/", "__pycache__")}
    return sorted(top for top in tops if not top.endswith(".pth"))

wanted, seen, parts, missing = list(sys.argv[1:]), set(), {}, []
while wanted:
    name = wanted.pop()
    if (plain := re.sub(r"[-_.]+", "-", name).lower()) in seen:
        continue
    seen.add(plain)
    try:
        distribution = metadata.distribution(name)
    except metadata.PackageNotFoundError:
        missing += [name] if name in sys.argv else []  # what it may require need not be there
        continue
    parts[name] = [str(distribution.locate_file(part)) for part in parts_of(distribution)]
    required = [line for line in distribution.requires or () if "extra ==" not in line]
    wanted += [re.match(r"[\w.-]+", line)[0] for line in required]
libraries = {line.split()[-1] for line in open("/proc/self/maps") if "libpython" in line}
print(json.dumps({
    "executable": os.path.realpath(sys._base_executable),
    "library": [sysconfig.get_path("stdlib"), sysconfig.get_config_var("DESTSHARED")],
    "shared": sorted(libraries),
    "triplet": sysconfig.get_config_var("MULTIARCH") or "",
    "parts": parts,
    "missing": missing,
}))
"""


class InterpreterError(RuntimeError):
    """The interpreter does not run, or a package is missing."""


@dataclass(frozen=True)
class Interpreter:
    """A Python interpreter with some of its packages. All paths are absolute.

    Attributes:
        command: command line that starts it without any packages.
        visible: files and folders that it needs.
        hidden: folders within `visible` that contain packages. Programs in the sandbox see only `packages` of them.
        packages: files and folders of the packages.
        search: folders that are searched for packages.
        modules: import names of the packages.
    """

    command: tuple[str, ...]
    visible: tuple[str, ...]
    hidden: tuple[str, ...]
    packages: tuple[str, ...]
    search: tuple[str, ...]
    modules: tuple[str, ...]

    def readable(self) -> list[str]:
        """Return all paths that may be read, as folders that contain nothing else."""
        return [*(path for folder in self.visible for path in _remove_hidden(folder, self.hidden)), *self.packages]


@cache
def find_interpreter(python: str | None, packages: tuple[str, ...]) -> Interpreter:
    """Find the files of an interpreter and its packages by running the interpreter.

    Args:
        python: its path. Optional. If None, the interpreter that runs this process.
        packages: distributions that must be visible, with their requirements.

    Raises:
        InterpreterError: it does not run, or one of the packages is not installed for it.
    """
    command = [python or sys.executable, "-P", "-c", _ASK, *packages]
    try:
        done = subprocess.run(  # noqa: S603 - the user's interpreter
            command, capture_output=True, text=True, timeout=ANSWER_SECONDS, check=True
        )
        answer = json.loads(done.stdout)
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        stderr = getattr(error, "stderr", "") or ""
        reason = stderr.strip().splitlines()[-1] if stderr.strip() else str(error)
        raise InterpreterError(f"code.python = {command[0]!r} does not run: {reason}") from None
    parts: dict[str, list[str]] = answer["parts"]
    missing = [*answer["missing"], *(name for name in packages if not parts.get(name, [name]))]
    if missing:
        raise InterpreterError(f"code.packages: {', '.join(missing)}: not installed for {command[0]}")
    system = _find_system_libraries(answer["triplet"])
    visible = list(dict.fromkeys([answer["executable"], *filter(None, answer["library"]), *answer["shared"], *system]))
    shown = [path for each in parts.values() for path in each]
    return Interpreter(
        command=(answer["executable"], "-S"),
        visible=tuple(path for path in visible if not _is_below(path, [each for each in visible if each != path])),
        hidden=tuple(_find_package_folders(visible)),
        packages=tuple(dict.fromkeys(shown)),
        search=tuple(dict.fromkeys(os.path.dirname(path) for path in shown)),
        modules=tuple(name for path in shown if (name := _parse_module_name(path))),
    )


def _find_system_libraries(triplet: str) -> list[str]:
    """Return the folders of shared libraries; only the ones of this processor if the system separates them."""
    apart = [f"/lib/{triplet}", f"/usr/lib/{triplet}"] if triplet else []
    folders = [folder for folder in (*apart, "/lib64", "/usr/lib64") if os.path.isdir(folder)]
    complete = any(map(os.path.isdir, apart)) or len(folders) == 2
    return folders if complete else [*folders, "/lib", "/usr/lib"]


def _find_package_folders(visible: Iterable[str]) -> list[str]:
    """Return the folders of installed packages inside the visible ones."""
    kinds = ("site-packages", "dist-packages", "python3*/site-packages", "python3*/dist-packages")
    return sorted({path for folder in visible for kind in kinds for path in glob(os.path.join(folder, kind))})


def _parse_module_name(path: str) -> str | None:
    """Return the import name of a part of a package, or None if it is not a module."""
    name, _, rest = os.path.basename(path).partition(".")
    is_module = (
        os.path.exists(os.path.join(path, "__init__.py")) if os.path.isdir(path) else rest.endswith(("py", "so"))
    )
    return name if is_module and name.isidentifier() else None


def _is_below(path: str, folders: Sequence[str]) -> bool:
    return any(path.startswith(folder.rstrip("/") + "/") for folder in folders)


def _remove_hidden(folder: str, hidden: Sequence[str]) -> list[str]:
    """Return the folder, or its contents without the hidden folders."""
    if folder in hidden:
        return []
    if not any(_is_below(each, [folder]) for each in hidden):
        return [folder]
    return [path for name in sorted(os.listdir(folder)) for path in _remove_hidden(os.path.join(folder, name), hidden)]
