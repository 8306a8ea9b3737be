"""Computes a stage's cache version: a digest of the code and the package versions that can change its outputs.

The digest covers the task's module and every module of this project that it imports directly or indirectly, anywhere
in a file. It includes the data files next to them (such as templates), and the pinned versions in the images (`LOCK`)
of the distributions that these modules import. Code is read from the syntax tree without docstrings, so that comments
and formatting do not change the digest, and without `DISPLAY`. Nothing is imported, and the digest does not depend on
the version of Python or the installed packages, because torch and vLLM may not be installed on the machine that
registers a task.
"""

from __future__ import annotations

import ast
import hashlib
import re
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

from images import pins
from tasks.lineage.parsed_modules import ParsedModules

ROOT = Path(__file__).parents[2]
"""The root of the checkout."""
PACKAGES = ("tasks", "workflows")
"""The packages of this project whose code is included."""
LOCK = pins.CUDA.path
"""The file with the pinned versions: the pins of the generation and training images, which include the data image.

Machines without a GPU have the same releases: `make check` compares their pins with these (`images.pins.differences`).
"""

DISPLAY = (
    "tasks.charts",  # charts on decks
    "tasks.flyte.archive",  # which files are sent to a cluster; the code that a stage imports is in its digest
    "tasks.flyte.cache_policy",  # decides when a stage runs again, not what it returns
    "tasks.flyte.lost_outputs",  # error messages about missing files
    "tasks.flyte.patches",  # how flytekit reads options, prints results and errors, and reads its local cache
    "tasks.lineage.code_digest",  # decides when a stage runs again, not what it returns
    "tasks.flyte.stages.progress",  # the progress bar on a terminal
    "tasks.flyte.stages.sampling_progress",  # the same with a live deck
    "tasks.flyte.stages.show",  # the content of decks
    "tasks.machine.engine_errors",  # error messages of engines that do not start
    "tasks.machine.memory_limit",  # error messages about processes that the kernel killed
    "tasks.machine.ray_memory",  # the same for processes on other nodes
    "tasks.machine.progress",  # the format of the progress bar and log lines
    "tasks.training.telemetry.trackers",  # further destinations of metrics
    "tasks.machine.quiet",  # which lines of other libraries reach the terminal
)
"""Modules and functions that only display a run. They are excluded, with calls to them and the arguments of the calls.

A stage's headline is not excluded, because it is an output (`StageSummary`).
"""
DRAWING = ("tasks.reporting", "tasks.charts")
"""The package of the stages whose output is a display, and the package of their charts. Nothing of them is excluded
from the digests of these stages."""

DISTRIBUTIONS = {
    "google": "protobuf",
    "yaml": "pyyaml",
}
"""Names of distributions that differ from their import names, by import name."""
UNCOUNTED = {*PACKAGES, "images", "mlflow", "wandb"}
"""Imports whose versions are not included: this project, and packages that are used only if they are installed."""

_NAME = re.compile(r"\w+(\.\w+)*")


@cache
def code_digest(module: str, ignored_code: tuple[str, ...] = ()) -> str:
    """Return a digest (64 hex digits) of `module`, the project's modules that it imports, and their distributions.

    Args:
        module: the module of a task.
        ignored_code: packages or modules of the project that are excluded.

    Raises:
        ValueError: a module has a relative import, or `LOCK` is missing or lacks an imported distribution.
    """
    digest = hashlib.sha256()
    # Sorted, because the order of texts in a set differs from process to process.
    for name in sorted(find_reachable_modules(module, ignored_code)):
        digest.update(f"{name}\n{_select_code(module, name).digest}\n".encode())
        for path in _list_data_files(_find_file(name)):
            # The name without its folder, so that all checkouts have the same digest.
            digest.update(path.name.encode() + path.read_bytes())
    for distribution, version in sorted(find_distributions(module, ignored_code).items()):
        digest.update(f"{distribution}=={version}\n".encode())
    _PARSED.save()  # here and not in `_read_code`, so that the file is written once per digest
    return digest.hexdigest()


@cache
def find_reachable_modules(module: str, ignored_code: tuple[str, ...] = ()) -> frozenset[str]:
    """Return `module` and the project's modules that it imports directly or indirectly, including their packages.

    `DISPLAY` and `ignored_code` are excluded.

    Raises:
        ValueError: a module has a relative import.
    """
    reached: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in reached or _is_inside(name, ignored_code) or not _is_ours(name):
            continue
        reached.add(name)
        # An import also runs the `__init__.py` of each package that contains the module.
        waiting += [name.rsplit(".", level)[0] for level in range(1, name.count(".") + 1)]
        code = _select_code(module, name)
        # A string without a dot, such as the folder of the recipes, is not a module. Recipes are inputs and not code.
        waiting += code.imports | {text for text in code.strings if "." in text}
    return frozenset(reached)


def find_distributions(module: str, ignored_code: tuple[str, ...] = ()) -> dict[str, str]:
    """Return the distributions that a stage imports, by name, with their versions in `LOCK`.

    The stage consists of `module` and the modules that `find_reachable_modules` returns for it.

    Raises:
        ValueError: a module has a relative import, or `LOCK` is missing or lacks an imported distribution.
    """
    versions = _read_versions(ROOT / LOCK)
    versions_of = {}
    for name in find_reachable_modules(module, ignored_code):
        code = _select_code(module, name)
        # Most strings do not name modules: a string counts only if a package with this name is pinned.
        named = {root for root in _list_roots(code.strings) if _to_distribution(root) in versions}
        for root in (_list_roots(code.imports) | named) - UNCOUNTED - sys.stdlib_module_names:
            if _to_distribution(root) not in versions:
                raise ValueError(f"{name} imports {root}, of which {LOCK} gives no version")
            versions_of[_to_distribution(root)] = versions[_to_distribution(root)]
    return versions_of


def find_pinned_version(package: str) -> str | None:
    """Return the version of an importable `package` in every image, or None if `LOCK` has none.

    Raises:
        ValueError: `LOCK` is missing.
    """
    return _read_versions(ROOT / LOCK).get(_to_distribution(package.partition(".")[0]))


def _list_roots(modules: Iterable[str]) -> set[str]:
    return {module.partition(".")[0] for module in modules}


def _to_distribution(root: str) -> str:
    return DISTRIBUTIONS.get(root, root.replace("_", "-").lower())  # normalized as in `LOCK` (PEP 503)


@cache
def _read_versions(path: Path) -> dict[str, str]:
    if not path.is_file():
        raise ValueError(f"{path} is missing: the versions in it are part of every stage's cache version")
    return pins.read(path)


def _select_code(stage: str, module: str) -> _Code:
    """Return the parts of the module that are included in the digest of a stage."""
    # Two forms of a module are enough for all stages, so that each module is parsed at most twice.
    return _read_code(module, whole=_is_inside(stage, DRAWING) and _is_inside(module, DRAWING))


@cache
def _is_ours(module: str) -> bool:
    # The name may be that of a function or a class, which `from module import name` adds and which has no file.
    return module.split(".", maxsplit=1)[0] in PACKAGES and _find_file(module).is_file()


@cache
def _find_file(module: str) -> Path:
    path = ROOT.joinpath(*module.split("."))
    return path / "__init__.py" if path.is_dir() else path.with_suffix(".py")


_PARSED = ParsedModules(Path(__file__))


class _Code(NamedTuple):
    """The included part of a module: a digest of its syntax tree, its imports, and strings that may be module names."""

    digest: str
    imports: frozenset[str]
    strings: frozenset[str]


@cache
def _read_code(module: str, *, whole: bool) -> _Code:
    """Read the module without docstrings, and also without `DISPLAY` unless it is `whole`."""
    source = _find_file(module).read_bytes()
    # The content and not its time, because `git checkout` changes the times of files.
    key = f"{module} {whole} {hashlib.sha256(source).hexdigest()}"
    if (stored := _PARSED.get(key)) is not None:
        digest, *names = stored
        return _Code(digest, *map(frozenset, names))
    reader = _Reader(None if whole else module)
    try:
        reader.visit(ast.parse(source))
    except ValueError as error:
        raise ValueError(f"{module}: {error}") from None
    digest = hashlib.sha256("".join(reader.text).encode()).hexdigest()
    _PARSED.add(key, [digest, sorted(reader.imports), sorted(reader.strings)])
    return _Code(digest, frozenset(reader.imports), frozenset(reader.strings))


class _Reader(ast.NodeVisitor):
    """Converts a syntax tree to text that is the same in every version of Python, and collects the names in it.

    Empty fields and docstrings are left out. If the module's name is given, code for display (the names in `DISPLAY`)
    is left out as well: its definitions, its imports, and the statements and arguments that call it.
    """

    def __init__(self, module: str | None) -> None:
        self.text: list[str] = []
        self.imports: set[str] = set()
        self.strings: set[str] = set()
        self._module = module
        self._meaning: dict[str, str] = {}  # full names of the names that the module imports

    def generic_visit(self, node: ast.AST) -> None:
        # `ast.dump` would be shorter, but its text differs between versions of Python.
        write, visit = self.text.append, self.visit
        write(f"{type(node).__name__}(")
        for name in node._fields:
            if name == "ctx":  # a name's context follows from its position
                continue
            value = getattr(node, name, None)
            if isinstance(value, ast.AST):
                write(f"{name}=")
                visit(value)
            elif isinstance(value, list):
                if value:  # Python 3.12 added `type_params`, which is empty for code of earlier versions
                    write(f"{name}=[")
                    for item in value:
                        if isinstance(item, ast.AST):
                            visit(item)
                        else:
                            write(f"{item!a},")
                    write("]")
            elif value is not None:
                write(f"{name}={value!a},")
        write(")")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        # `DISPLAY` names functions at the top of a module; a nested one may have the same name.
        if not (self._module and node.col_offset == 0 and _is_display(f"{self._module}.{node.name}")):
            self.generic_visit(node)

    def visit_Import(self, node: ast.Import) -> None:
        self._meaning |= {alias.asname: alias.name for alias in node.names if alias.asname}
        self._import(node, {alias: alias.name for alias in node.names})

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.level or not node.module:
            raise ValueError(f"a relative import, which cache versions do not follow: {ast.unparse(node)}")
        full_names = {alias: f"{node.module}.{alias.name}" for alias in node.names}
        self._meaning |= {alias.asname or alias.name: full_name for alias, full_name in full_names.items()}
        # An imported function has no file, so its module counts as well.
        if self._import(node, full_names):
            self.imports.add(node.module)

    def visit_Expr(self, node: ast.Expr) -> None:
        if isinstance(node.value, ast.Constant) or (
            isinstance(node.value, ast.Call) and self._is_display_call(node.value.func)
        ):
            return
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        # The call stays, because it may be part of a larger statement, such as `with progress(...)`.
        self.generic_visit(ast.Call(node.func, [], []) if self._is_display_call(node.func) else node)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and _NAME.fullmatch(node.value):
            self.strings.add(node.value)  # it may name a module that is imported later
        self.text.append(f"Constant({node.value!a})")

    def _import(self, node: ast.Import | ast.ImportFrom, full_names: dict[ast.alias, str]) -> bool:
        """Read an import, with the full name of each alias. Return True if any of it is included."""
        counted = [alias for alias in node.names if not (self._module and _is_display(full_names[alias]))]
        self.imports.update(full_names[alias] for alias in counted)
        for alias in counted:
            self.text.append(f"import {full_names[alias]} as {alias.asname},")
        return bool(counted)

    def _is_display_call(self, function: ast.expr) -> bool:
        names: list[str] = []
        while isinstance(function, ast.Attribute):
            names.append(function.attr)
            function = function.value
        if not (self._module and isinstance(function, ast.Name)):
            return False
        # The full name follows from the imports: `charts.page` is `tasks.charts.page`.
        return _is_display(".".join([self._meaning.get(function.id, function.id), *reversed(names)]))


@cache
def _is_display(name: str) -> bool:
    return _is_inside(name, DISPLAY)


def _is_inside(name: str, packages: Iterable[str]) -> bool:
    # With the dots, `tasks.charts_page` is not in `tasks.charts`.
    return any(f"{name}.".startswith(f"{package}.") for package in packages)


@cache
def _list_data_files(path: Path) -> list[Path]:
    if path.name != "__init__.py":
        return []
    below = [p for p in path.parent.rglob("*") if p.is_file() and p.suffix != ".py" and "__pycache__" not in p.parts]
    # Files of a package below are counted with that package, if it is imported.
    return sorted(p for p in below if not (p.parent != path.parent and (p.parent / "__init__.py").exists()))
