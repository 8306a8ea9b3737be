"""Turns tests that only define test functions into tests that run them, as pytest, `unittest` or Python would.

| a test that | runs |
|---|---|
| defines functions `test...` that nothing calls | each of them, as with pytest |
| defines a `unittest.TestCase`, or a class `Test...` with methods `test...` | each method of a new instance |
| has code under `if __name__ == "__main__"` | that code |
| compares without `assert` | the comparison, as an assertion |
| asserts a pair of a condition and a text | the condition, with the text as its message |
"""

from __future__ import annotations

import ast
import copy
from collections.abc import Iterator, Sequence

from tasks.verifiers.code.names import walk
from tasks.verifiers.code.syntax import parse, unparse

_SET_UP, _TEAR_DOWN = ("setup_method", "setUp"), ("teardown_method", "tearDown")


class TestsNothingError(ValueError):
    """A test cannot fail, or nothing runs it."""


def make_runnable(setup: str, tests: Sequence[str]) -> tuple[str, list[str]]:
    """Return setup and tests with these changes. All of them must be valid Python.

    Raises:
        TestsNothingError: an assertion tests a tuple, which is always true, or a test function has arguments without
            values.
    """
    sources = [setup, *tests]
    if not any(map(_can_change, sources)):
        return setup, list(tests)
    trees = [parse(source) for source in sources]
    mentioned = {node.id for tree in trees for node in walk(tree) if isinstance(node, ast.Name)}
    for number, tree in enumerate(trees):
        tree.body = list(_yield_runnable(tree, mentioned, number > 0))
    _inline(trees)
    first, *others = (
        unparse(tree) if _can_change(source) else source for source, tree in zip(sources, trees, strict=True)
    )
    return first, others


def _can_change(source: str) -> bool:
    """Return False for nearly all tests: the ones whose lines are assertions."""
    lines = source.splitlines()
    return (
        any(not line.startswith(("assert ", "#", "import ")) and line.strip() for line in lines) or "assert (" in source
    )


def _yield_runnable(tree: ast.Module, mentioned: set[str], is_test: bool) -> Iterator[ast.stmt]:
    calls: list[ast.stmt] = []
    for node in _yield_statements(tree.body):
        match node:
            case ast.Expr(value=ast.Compare() as comparison):
                yield ast.Assert(comparison)
            case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id="unittest" | "pytest"), attr="main"))):
                continue
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) if name.startswith("test"):
                yield _make_asserting(node)
                if is_test and name not in mentioned:
                    calls += _build_calls(node)
            case ast.ClassDef(name=name) if name not in mentioned and (methods := _find_test_methods(node)):
                yield _make_asserting(node)
                calls += _build_method_calls(node, methods)
            case _:
                yield _make_asserting(node)
    yield from calls


def _yield_statements(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield the statements of a module, including code that runs only in the main program."""
    for node in body:
        if isinstance(node, ast.If) and _is_main_check(node.test):
            yield from _yield_statements(node.body)
        else:
            yield node


def _is_main_check(test: ast.expr) -> bool:
    match test:
        case ast.Compare(left=ast.Name(id="__name__"), ops=[ast.Eq()], comparators=[ast.Constant(value="__main__")]):
            return True
        case ast.Compare(left=ast.Constant(value="__main__"), ops=[ast.Eq()], comparators=[ast.Name(id="__name__")]):
            return True
    return False


def _make_asserting(node: ast.stmt) -> ast.stmt:
    """Return a statement whose assertions can fail."""
    for part in walk(node):
        if isinstance(part, ast.Assert) and isinstance(part.test, ast.Tuple) and part.test.elts:
            match part.test.elts:
                case [condition, ast.Constant(value=str()) | ast.JoinedStr() as message]:
                    part.test, part.msg = condition, message
                case _:
                    raise TestsNothingError(f"asserts a tuple, which is always true: {unparse(part)[:120]!r}")
    return node


def _build_calls(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[ast.stmt]:
    required = len(node.args.posonlyargs) + len(node.args.args) - len(node.args.defaults)
    if required or None in node.args.kw_defaults:
        raise TestsNothingError(f"defines {node.name}, which takes arguments that nothing provides")
    return parse(_format_call(node, f"{node.name}()")).body


def _find_test_methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Return the methods of a class that pytest or `unittest` would run."""
    if not _is_case(node) and not node.name.startswith("Test"):
        return []
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    return [each for each in functions if each.name.startswith("test")]


def _is_case(node: ast.ClassDef) -> bool:
    return any(unparse(base).rpartition(".")[2] in ("TestCase", "IsolatedAsyncioTestCase") for base in node.bases)


def _build_method_calls(node: ast.ClassDef, methods: list[ast.FunctionDef | ast.AsyncFunctionDef]) -> list[ast.stmt]:
    names = {each.name for each in walk(node) if isinstance(each, ast.FunctionDef)}
    if _is_case(node):
        around = [f"{node.name}.{name}()" for name in ("setUpClass", "tearDownClass") if name in names]
        runs = [f"{node.name}({each.name!r}).debug()" for each in methods]
        before, after = around[: "setUpClass" in names], around["setUpClass" in names :]
        return parse("\n".join([*before, *runs, *after])).body
    lines = []
    for method in methods:
        if len(method.args.args) != 1:
            raise TestsNothingError(f"defines {node.name}.{method.name}, which takes arguments that nothing provides")
        lines.append(f"_case = {node.name}()")
        lines += [_format_hook_call(node, name) for name in _SET_UP if name in names]
        lines.append(_format_call(method, f"_case.{method.name}()"))
        lines += [_format_hook_call(node, name) for name in _TEAR_DOWN if name in names]
    return parse("\n".join(lines)).body


def _format_hook_call(node: ast.ClassDef, name: str) -> str:
    takes_method = any(
        isinstance(each, ast.FunctionDef) and each.name == name and len(each.args.args) > 1 for each in node.body
    )
    return f"_case.{name}({'None' if takes_method else ''})"


def _format_call(node: ast.FunctionDef | ast.AsyncFunctionDef, call: str) -> str:
    return f"__import__('asyncio').run({call})" if isinstance(node, ast.AsyncFunctionDef) else call


def _inline(trees: Sequence[ast.Module]) -> None:
    """Replace calls of simple test functions, as in `check(f)`, by the bodies of the functions."""
    functions = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.FunctionDef)}
    simple = {name: node for name, node in functions.items() if _can_be_inlined(node)}
    if not simple:
        return
    for tree in trees[1:]:
        tree.body = [line for node in tree.body for line in _inline_call(node, simple)]
    mentioned = {node.id for tree in trees for node in walk(tree) if isinstance(node, ast.Name)}
    for tree in trees:
        tree.body = [
            node for node in tree.body if simple.get(getattr(node, "name", "")) is not node or node.name in mentioned
        ]


def _can_be_inlined(node: ast.FunctionDef) -> bool:
    """Return True for a function that only asserts, and has no other effect."""
    inner = [each for part in node.body for each in walk(part)]
    kinds = (ast.Return, ast.Yield, ast.YieldFrom, ast.Global, ast.Nonlocal, ast.FunctionDef, ast.ClassDef, ast.Lambda)
    arguments = node.args.args
    plain = len(arguments) == len([each for each in walk(node.args) if isinstance(each, ast.arg)])
    names = {each.arg for each in arguments}
    bound = {each.id for each in inner if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store)}
    loaded = {each.id for each in inner if isinstance(each, ast.Name)}
    return (
        any(isinstance(each, ast.Assert) for each in inner)
        and not any(isinstance(each, kinds) for each in inner if not (isinstance(each, ast.Lambda) and not names))
        and not (node.decorator_list or node.args.defaults or names & bound or node.name in loaded)
        and plain
    )


def _inline_call(node: ast.stmt, simple: dict[str, ast.FunctionDef]) -> list[ast.stmt]:
    match node:
        case ast.Expr(value=ast.Call(func=ast.Name(id=name), args=given, keywords=[])) if name in simple:
            names = [each.arg for each in simple[name].args.args]
            if len(names) == len(given) and all(isinstance(each, ast.Name) for each in given):
                return [
                    _Renamed(dict(zip(names, given, strict=True))).visit(copy.deepcopy(line))
                    for line in simple[name].body
                ]
    return [node]


class _Renamed(ast.NodeTransformer):
    """Copies code with other names."""

    def __init__(self, names: dict[str, ast.expr]) -> None:
        self._names = names

    def visit_Name(self, node: ast.Name) -> ast.expr:
        """Return the name that replaces it."""
        return self._names.get(node.id, node)
