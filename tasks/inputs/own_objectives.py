"""Checks and identifies the loss and advantage functions of a recipe (`objective.surrogate`, `objective.advantage`).

Preflight has no torch, so that it does not import a function: it parses the module, whose digest becomes part of cache
keys. The model check calls the function (`tasks.model_check.own_functions`).
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tasks.config.loading import SpecError
from tasks.inputs.files import Recipe
from tasks.lineage.user_code import find_line, find_user_files
from tasks.recipe.own import OwnFunction
from tasks.verifiers.functions import compute_function_digest
from tasks.verifiers.scores import CannotJudge


def check_own_functions(training: Recipe) -> None:
    """Check that the files of the functions can be parsed, and that their modules contain these names.

    Raises:
        SpecError: a module does not exist, one of its files is not valid Python, or it does not contain the name.
    """
    for option, own in training.objective.own_functions.items():
        _compute_digest(option, own)  # the module exists
        module, _, name = own.function.rpartition(".")
        files = find_user_files(module)
        trees = {path: _parse(option, own, path.read_bytes(), str(path)) for path in files.values()}
        if not {name, "*"} & set(_list_names(trees[files[module]])):
            raise SpecError(f"{_describe_option(option, own)}: {files[module]} contains no {name}")


def add_code_digests(training: Recipe) -> Recipe:
    """Return the recipe with the digests of its functions, so that changed code misses the cache.

    Raises:
        SpecError: a module does not exist.
    """
    digests = {
        option: own.model_copy(update={"fingerprint": _compute_digest(option, own)})
        for option, own in training.objective.own_functions.items()
    }
    return training.model_copy(update={"objective": training.objective.model_copy(update=digests)})


def find_lacking_digests(training: Recipe) -> dict[str, bool]:
    """Return whether the digest of each function is missing, by its option."""
    own = training.objective.own_functions
    return {f"objective.{option}.function": each.fingerprint is None for option, each in own.items()}


def _describe_option(option: str, own: OwnFunction) -> str:
    return f"training: objective.{option}.function = {own.function!r}"


def _compute_digest(option: str, own: OwnFunction) -> str:
    try:
        return compute_function_digest(own.function, "function")
    except CannotJudge as error:
        raise SpecError(f"training: objective.{option}: {error}") from None


def _parse(option: str, own: OwnFunction, text: bytes, path: str) -> ast.AST:
    try:
        return ast.parse(text, path)
    except (SyntaxError, ValueError) as error:
        reason = f"{type(error).__name__}: {getattr(error, 'msg', error)}"
        line = find_line(error, own.function.rpartition(".")[0])
        raise SpecError(f"{_describe_option(option, own)}: cannot be imported: {reason}{line}") from None


def _list_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module may have, and `*` if it imports all names of another."""
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Name(id=name, ctx=ast.Store()):
                yield name
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                yield from (alias.asname or alias.name for alias in aliases)
