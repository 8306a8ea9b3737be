"""A stage's cache version: a digest of the code that can produce its outputs.

The digest covers the task's module and every module of this project that it reaches through imports, wherever in a
file they stand, with the data files (templates, say) that lie beside them. It is taken from the syntax tree without
docstrings, so that a comment or a reformatted line keeps the cache. Nothing is imported.
"""

from __future__ import annotations

import ast
import hashlib
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

from flytekit.core.cache import VersionParameters

ROOT = Path(__file__).parent.parent
PACKAGE = "tasks"
_MODULE_NAME = re.compile(rf"{PACKAGE}(\.\w+)+")


class CodeDigest:
    """A flytekit cache policy: the version of a task is `code_digest` of the module that defines it."""

    def get_version(self, salt: str, params: VersionParameters[Any, Any]) -> str:
        """Called by flytekit when the task is declared."""
        assert params.func is not None
        return hashlib.sha256(f"{salt}{code_digest(params.func.__module__)}".encode()).hexdigest()


@cache
def code_digest(module: str) -> str:
    """64 hex digits over `module` and all that it reaches within the project."""
    digest = hashlib.sha256()
    for name in sorted(reachable(module)):
        digest.update(f"{name}\n{_normalised(_file(name))}\n".encode())
        for path in _data_files(_file(name)):
            digest.update(path.name.encode() + path.read_bytes())
    return digest.hexdigest()


def reachable(module: str) -> set[str]:
    """`module` and the project's modules that it imports, directly or not, their packages included."""
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or not _exists(name):
            continue
        found.add(name)
        waiting += [name.rsplit(".", level)[0] for level in range(1, name.count(".") + 1)]
        waiting += _imports(name)
    return found


def _imports(module: str) -> Iterator[str]:
    for node in ast.walk(_tree(_file(module))):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=source, names=names, level=0) if source:
                yield source
                yield from (f"{source}.{alias.name}" for alias in names)
            case ast.Constant(value=str(text)) if _MODULE_NAME.fullmatch(text):
                yield text  # named now, imported when it is needed


def _exists(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] == PACKAGE and _file(module).is_file()


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


@cache
def _tree(path: Path) -> ast.Module:
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [
                line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ]
    return tree


def _normalised(path: Path) -> str:
    return ast.dump(_tree(path))


def _data_files(path: Path) -> list[Path]:
    if path.name != "__init__.py":
        return []
    below = [p for p in path.parent.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts]
    return sorted(p for p in below if not (p.parent != path.parent and (p.parent / "__init__.py").exists()))
