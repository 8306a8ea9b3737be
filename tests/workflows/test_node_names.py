"""Names of nodes in a dynamic task stay within what Flyte's console can show."""

import ast

import pytest

from tests.paths import ROOT

MOST = 20
"""Characters of a node's name with its parents' that Flyte keeps; a longer one becomes a hash, whose state the console
never learns."""
NUMBER = "99"
"""The highest number of a node in a name: a hundred of a kind."""
PARENTS = {"data": "data", "training": "train", "evaluation": "evaluation", "checking": "model-check"}
"""The name of the node that each module of a dynamic task has in the whole pipeline."""


def longest(name: ast.expr) -> int:
    """Return the length of the longest name that an expression gives; one of the user's stands in none."""
    match name:
        case ast.Constant(value=str(text)):
            return len(text)
        case ast.JoinedStr(values=[ast.Constant(value=str(text)), ast.FormattedValue()]):
            return len(f"{text.removesuffix('-')}-{NUMBER}")
        case ast.IfExp(body=body, orelse=orelse):
            return max(longest(body), longest(orelse))
        case ast.Name(id="name"):
            return len("before")
    raise AssertionError(ast.unparse(name))


def node_names(module: str) -> list[ast.expr]:
    tree = ast.parse((ROOT / "workflows" / f"{module}.py").read_text())
    functions = [node for node in tree.body if isinstance(node, ast.FunctionDef)]
    inner = [node for node in functions if module == "rlvr" or "workflow" not in map(ast.unparse, node.decorator_list)]
    calls = (node for function in inner for node in ast.walk(function) if isinstance(node, ast.Call))
    return [keyword.value for call in calls for keyword in call.keywords if keyword.arg == "node_name"]


@pytest.mark.parametrize("module", PARENTS)
def test_a_name_and_its_parents_are_short_enough(module):
    parents = {keyword.value for keyword in node_names("rlvr") if isinstance(keyword, ast.Constant)}
    assert PARENTS[module] in parents
    names = node_names(module)
    assert names
    for name in names:
        assert len(f"{PARENTS[module]}-0-") + longest(name) <= MOST, ast.unparse(name)
