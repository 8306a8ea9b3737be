"""Names and docstrings follow CONTRIBUTING.md's rules of language."""

import ast
from pathlib import Path

import pytest

from tests.paths import ROOT

EMPTY_NAMES = {"each", "found", "place", "kept", "told", "said", "there"}
"""Names that say that something is, not what it is."""
HEADLESS = ("What ", "Whether ", "Which ", "Where ", "Who ", "Whose ", "Those ", "Of ", "As ", "See ", "Its ", "How ")
"""First words of a docstring that is no sentence."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
FILES = sorted(path for folder in ("tasks", "workflows", "images") for path in (ROOT / folder).rglob("*.py"))


def bound_names(tree: ast.AST) -> dict[str, int]:
    """The names that a module binds, with a line of each; variables of comprehensions are left out."""
    comprehension = (ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp)
    inner = {
        id(name)
        for node in ast.walk(tree)
        if isinstance(node, comprehension)
        for generator in node.generators
        for name in ast.walk(generator.target)
    }
    names = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names[node.name] = node.lineno
        elif isinstance(node, ast.arg):
            names[node.arg] = node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and id(node) not in inner:
            names[node.id] = node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            names[node.attr] = node.lineno
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_names_say_what_a_thing_is(path: Path):
    names = bound_names(ast.parse(path.read_text()))
    wrong = {name: line for name, line in names.items() if name.strip("_") in EMPTY_NAMES}
    assert not wrong, f"{path.relative_to(ROOT)}: {wrong}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_docstrings_begin_with_a_sentence(path: Path):
    tree = ast.parse(path.read_text())
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    texts = [item.value for body in bodies for item in body if isinstance(item, ast.Expr)]
    docs = [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]
    wrong = [doc.splitlines()[0] for doc in docs if doc.startswith(HEADLESS)]
    assert not wrong, f"{path.relative_to(ROOT)}: {wrong}"
