"""Names and docstrings follow CONTRIBUTING.md's rules of language."""

import ast
import json
import re
from functools import cache

from tests import words
from tests.paths import ROOT

EMPTY_NAMES = {"each", "found", "place", "kept", "told", "said", "there"}
"""Names that say that something is, not what it is."""
HEADLESS = ("What ", "Whether ", "Which ", "Where ", "Who ", "Whose ", "Those ", "Of ", "As ", "See ", "Its ", "How ")
"""First words of a docstring that is no sentence."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


@cache
def trees() -> dict[str, ast.Module]:
    """The syntax trees of all modules, by their paths."""
    return {
        str(path.relative_to(ROOT)): ast.parse(path.read_text())
        for folder in ("tasks", "workflows", "images")
        for path in sorted((ROOT / folder).rglob("*.py"))
    }


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


def docstrings(tree: ast.AST) -> list[str]:
    """The docstrings of a module: its own, and those of its classes, functions and fields."""
    bodies = [node.body for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
    texts = [item.value for body in bodies for item in body if isinstance(item, ast.Expr)]
    return [text.value for text in texts if isinstance(text, ast.Constant) and isinstance(text.value, str)]


def test_names_say_what_a_thing_is():
    assert [
        (path, line, name)
        for path, tree in trees().items()
        for name, line in bound_names(tree).items()
        if name.strip("_") in EMPTY_NAMES
    ] == []


def test_docstrings_begin_with_a_sentence():
    assert [
        (path, text.splitlines()[0])
        for path, tree in trees().items()
        for text in docstrings(tree)
        if text.startswith(HEADLESS)
    ] == []


def test_phrases_of_our_own_dialect_become_fewer():
    stored = json.loads(words.COUNTS.read_text())
    counted = words.counts()
    assert {name: count for name, count in counted.items() if count > stored[name]} == {}, "say it as the field does"
    assert counted.keys() == stored.keys()


def test_the_glossary_says_what_to_write_instead():
    table = (ROOT / "docs/glossary.md").read_text().split("## Write this, not that")[1]
    assert set(re.findall(r"`([^`\n]+)`", table.split("|---|---|")[1])) == words.PHRASES.keys()
