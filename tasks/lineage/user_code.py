"""Imports a user's module, and computes the digest of its file and of the user's files that it imports.

A module belongs to the user if it is not in this project, the standard library or an installed package. For the digest,
modules are read and not imported. Imports anywhere in a file are included, and so are module names in strings, as in
`importlib.import_module("helper")`.
"""

from __future__ import annotations

import ast
import hashlib
import importlib
import importlib.util
import inspect
import os
import re
import sys
import sysconfig
import traceback
from collections.abc import Callable, Iterator
from functools import lru_cache
from importlib.machinery import all_suffixes
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

PROJECT = {"tasks", "workflows", "images"}
"""The packages of this project, whose code is in the cache versions of its stages."""

_NAME = re.compile(r"\.*[^\W\d]\w*(\.[^\W\d]\w*)*")
_STANDARD_LIBRARY = Path(sysconfig.get_path("stdlib"))


class _Location(NamedTuple):
    """The file of a module (None for a package without one or a built-in module), and the folders of a package."""

    file: Path | None
    folders: tuple[Path, ...]


_latest: dict[str, tuple[dict[Path, int], str]] = {}
"""The files of a module with their modification times when its digest was last computed, and the digest."""
_imported: dict[str, str] = {}
"""The digest of a module when it was imported."""


def user_code_digest(module: str) -> str:
    """Return a digest (16 hex digits) of the file of `module` and the user's files that it imports.

    Raises:
        ImportError: there is no such module.
    """
    times, digest = _latest.get(module, ({}, ""))
    if _find_file(module) in times and all(_read_time(path) == time for path, time in times.items()):
        return digest
    files = find_user_files(module)
    content = hashlib.sha256()
    for name, path in sorted(files.items()):
        content.update(f"{name}\n{hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    digest = content.hexdigest()[:16]
    _latest[module] = {path: _read_time(path) for path in files.values()}, digest
    return digest


def import_user_module(module: str) -> ModuleType:
    """Return the module. If files changed, it and the user's modules that it imports are imported again.

    Raises:
        ImportError: there is no such module.
        Exception: any error that the module raises.
    """
    digest = user_code_digest(module)
    if _imported.get(module, digest) != digest:
        for name in find_user_files(module):
            sys.modules.pop(name, None)
        importlib.invalidate_caches()
    _imported[module] = digest
    return importlib.import_module(module)


def find_user_files(module: str) -> dict[str, Path]:
    """Return, by module name, the files of `module` and of the user's modules that it imports directly or indirectly.

    They include the packages of these modules.

    Raises:
        ImportError: there is no such module.
    """
    files = {module: _find_file(module)}
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in seen:
            continue
        seen.add(name)
        location = _find_location(name)
        if location is None or (name != module and not _is_users(name, location)):
            continue
        waiting += [name.rsplit(".", level)[0] for level in range(1, name.count(".") + 1)]
        if location.file is not None:
            files[name] = location.file
            package = name if location.folders else name.rpartition(".")[0]
            waiting += _list_imports(location.file, _read_time(location.file), package)
    return files


def find_line(error: BaseException, module: str, function: Callable[..., Any] | None = None) -> str:
    """Return the last line of the user's files in an exception's traceback, or else the function's first line.

    The result is in parentheses, or empty if neither is known.
    """
    files = {str(path): path for path in find_user_files(module).values()}
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        return _read_line(Path(error.filename), error.lineno)
    for frame in reversed(traceback.extract_tb(error.__traceback__)):
        if frame.filename in files and frame.lineno is not None:
            return _read_line(files[frame.filename], frame.lineno)
    code = getattr(inspect.unwrap(function), "__code__", None) if function is not None else None
    return "" if code is None else _read_line(Path(code.co_filename), code.co_firstlineno)


def _find_file(module: str) -> Path:
    """Return the file of a module in the working directory or the Python path."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())
    location = _find_location(module)
    if location is None or location.file is None:
        raise ImportError(f"there is no module {module} in {os.getcwd()} or the Python path")
    return location.file


def _read_time(path: Path) -> int:
    """Return the modification time of a file in nanoseconds, or 0 if it does not exist."""
    return path.stat().st_mtime_ns if path.is_file() else 0


def _find_location(module: str) -> _Location | None:
    """Find a module without importing its parent packages."""
    root, *parts = module.split(".")
    try:
        spec = importlib.util.find_spec(root)
    except (ImportError, ValueError):
        return None
    if spec is None:
        return None
    file = Path(spec.origin) if spec.has_location and spec.origin else None
    location: _Location | None = _Location(file, tuple(map(Path, spec.submodule_search_locations or ())))
    for part in parts:
        location = _find_below(location.folders, part) if location else None
    return location


def _find_below(folders: tuple[Path, ...], name: str) -> _Location | None:
    for folder in folders:
        if (folder / name / "__init__.py").is_file():
            return _Location(folder / name / "__init__.py", (folder / name,))
        for suffix in all_suffixes():
            if (folder / f"{name}{suffix}").is_file():
                return _Location(folder / f"{name}{suffix}", ())
    without_file = tuple(folder / name for folder in folders if (folder / name).is_dir())
    return _Location(None, without_file) if without_file else None


def _is_users(name: str, location: _Location) -> bool:
    paths = [location.file] if location.file else location.folders
    return name.partition(".")[0] not in PROJECT and not any(
        path.is_relative_to(_STANDARD_LIBRARY) or {"site-packages", "dist-packages"} & set(path.parts) for path in paths
    )


@lru_cache
def _list_imports(path: Path, _time_ns: int, package: str) -> frozenset[str]:
    """Return the names in a file that may be modules."""
    if path.suffix != ".py":
        return frozenset()
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):  # the import of the file will report it
        return frozenset()
    return frozenset(name for node in ast.walk(tree) for name in _list_names(node, package))


def _list_names(node: ast.AST, package: str) -> Iterator[str]:
    match node:
        case ast.Import(names=names):
            yield from (alias.name for alias in names)
        case ast.ImportFrom(module=module, names=names, level=level):
            base = _resolve_name("." * level + (module or ""), package)
            yield from [base, *(f"{base}.{alias.name}" for alias in names)] if base else ()
        case ast.Constant(value=str(text)) if len(text) < 200 and _NAME.fullmatch(text):
            yield from filter(None, [_resolve_name(text, package)])


def _resolve_name(name: str, package: str) -> str:
    try:
        return importlib.util.resolve_name(name, package)
    except ImportError:  # a relative name outside of a package
        return ""


def _read_line(path: Path, number: int) -> str:
    shown = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
    return f" ({shown}, line {number})"
