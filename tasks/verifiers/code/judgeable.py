"""Detects tests that cannot be verified, before anything runs.

Code of a test that runs in the response's process (`split`) may use all of Python. The rest runs in another process, in
which an instance of one of the response's classes is only a reference. With it tests call methods, read attributes,
iterate, order instances by `<`, calculate with two of them, and use `isinstance`; exceptions that the response defines
are caught like any others. Each result is a value from the response, which the test compares with its own values.

Nothing else is safe. If the response's `__eq__`, `__contains__` or `__exit__` decided an assertion, a method that
always agrees would be rewarded. If a value of the test were passed to its operators, that might be the expected result.
A test that needs this is rejected here, because it could only fail whatever the response is.

A class of the response is recognised only by its name, which begins with a capital letter and is defined neither by the
tests, their setup, nor Python. As functions can have such names too, its use decides.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Any

from tasks.verifiers.code.crossing import PYTHON
from tasks.verifiers.code.names import find_bound_names, is_class_like, last, list_children, walk
from tasks.verifiers.code.split import Split, split

_CONVERSIONS = {"int", "float", "complex", "round", "hash", "reversed", "set", "frozenset", "dict", "copy", "deepcopy"}
_CAPTURES = {"redirect_stdout", "redirect_stderr", "patch"}
_STREAMS = {"stdin", "stdout", "stderr", "input", "print"}
_RUNNERS, _LOOPS = {"run", "run_until_complete", "gather"}, {"asyncio", "loop"}
_ATTRIBUTES = {"__name__", "__qualname__"}
"""Names between double underscores that may be read from an object of the response."""

TOO_DEEP = "a test is nested too deeply to be read"
"""Reason for rejecting a test that exhausts the stack."""
_CONTAINS = "uses `in` on an instance of the response, where its __contains__ or __eq__ would decide"
_EQUALS = "compares instances of the response by ==, where its __eq__ would decide; compare their attributes"
_MEMBERS = "expects a value that the response defines; compare its .value or .name"
_OPERATORS = "passes a value of the test to an operator of the response, which could be the expected result"
_TYPES = "compares type() with a class of the response, which lives in another process; use isinstance()"
_CONTEXTS = "enters a context manager of the response, whose __exit__ could swallow a failed assertion"
_DERIVES = "derives a class from one of the response, which lives in another process"
_MATCHES = "matches a class of the response as a pattern, and it lives in another process"
_AWAITS = "awaits a coroutine of the response, which lives in another process"
_HASHES = "has instances of the response in a set or as keys, where its __eq__ would decide"
_PRINTS = "captures what this process prints or replaces what it holds, while the response runs in another; use cases"


def find_checker_problem(tests: Sequence[str], setup: str) -> str | None:
    """Return why these tests cannot be verified, or None. All of them must be valid Python."""
    try:
        return find_problem(split("", setup, tests))
    except RecursionError:
        return TOO_DEEP


def find_problem(parts: Split) -> str | None:
    """Return why split tests cannot be verified, or None; raises `RecursionError` if they are nested too deeply."""
    _, setup, *tests = parts.trees
    trees = [("setup", setup), *((f"test {number}", test) for number, test in enumerate(tests))]
    reader = _Reader([tree for _, tree in trees], parts.understood)
    return next((f"{where} {problem}" for where, tree in trees for problem in reader.find_problems(tree)), None)


class _Reader:
    """Reads test code and tracks which variables contain instances of the response's classes."""

    def __init__(self, trees: Sequence[ast.AST], understood: Collection[int]) -> None:
        self._ours = {name for tree in trees for name in find_bound_names(tree)}
        self._understood = understood
        self._class_of: dict[str, str] = {}
        self._classes: set[str] = set()
        for tree in trees:
            self._follow(tree)
            self._classes.update(name for node in walk(tree) if (name := self._find_shown_class(node)))
        self._class_of.clear()
        self._readers: dict[type[ast.AST], Callable[[Any], str | None]] = {
            ast.Compare: self._comparison,
            ast.BinOp: lambda node: self._check_operator(node.left, node.right),
            ast.AugAssign: lambda node: self._check_operator(node.target, node.value),
            ast.Call: self._call,
            ast.Assign: lambda node: _PRINTS if any(map(_is_stream, node.targets)) else None,
            ast.With: self._check_context,
            ast.AsyncWith: self._check_context,
            ast.ClassDef: lambda node: _DERIVES if any(map(self._get_class_name, node.bases)) else None,
            ast.Attribute: self._check_attribute,
            ast.Await: lambda node: _AWAITS if self._is_theirs(node.value) else None,
            ast.MatchClass: lambda node: _MATCHES if self._get_class_name(node.cls) else None,
            ast.Set: lambda node: _HASHES if any(map(self._is_instance, node.elts)) else None,
            ast.Dict: lambda node: _HASHES if any(self._is_instance(key) for key in node.keys if key) else None,
        }

    def find_problems(self, tree: ast.AST) -> Iterator[str]:
        """Yield why test code cannot be verified, for each unsupported node."""
        self._follow(tree)
        for node in self._run_here(tree):
            reader = self._readers.get(type(node))
            if reader and (problem := reader(node)):
                yield f"{problem}: {ast.unparse(node)[:120]!r}"

    def _run_here(self, node: ast.AST) -> Iterator[ast.AST]:
        """Yield the nodes of code that does not run in the response's process."""
        if id(node) not in self._understood:
            yield node
            for part in list_children(node):
                yield from self._run_here(part)

    def _follow(self, tree: ast.AST) -> None:
        """Record which variables contain instances, and of which class, at the end of this test code."""
        for name in find_bound_names(tree):
            self._class_of.pop(name, None)
        for node in walk(tree):
            match node:
                case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call(func=kind)) if self._get_class_name(kind):
                    self._class_of[name] = self._get_class_name(kind) or ""

    def _find_shown_class(self, node: ast.AST) -> str | None:
        """Return the class whose instances `isinstance` or an attribute is used on; both show that it is a class."""
        match node:
            case ast.Call(func=ast.Name(id="isinstance"), args=[_, kind]):
                return self._get_class_name(kind)
            case ast.Attribute(value=value):
                return self._find_class(value)
        return None

    def _comparison(self, node: ast.Compare) -> str | None:
        sides = [node.left, *node.comparators]
        for left, op, right in zip(sides[:-1], node.ops, sides[1:], strict=True):
            for one, other in ((left, right), (right, left)):
                problem = self._check_pair(one, op, other)
                if problem:
                    return problem
        return None

    def _check_pair(self, one: ast.expr, op: ast.cmpop, other: ast.expr) -> str | None:
        theirs = self._is_theirs(other) or self._is_member(other) or self._can_hold_instance(other)
        if isinstance(op, ast.In | ast.NotIn):
            return _CONTAINS if self._is_instance(one) else None
        if isinstance(op, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
            return self._check_operator(one, other)
        if self._is_member(one) and theirs:
            return _MEMBERS
        if self._can_hold_instance(one) and theirs and isinstance(op, ast.Eq | ast.NotEq):
            return _EQUALS
        asks_type = isinstance(one, ast.Call) and last(one) == "type"
        return _TYPES if asks_type and self._get_class_name(other) else None

    def _check_operator(self, one: ast.expr, other: ast.expr) -> str | None:
        sure = self._is_instance(one), self._is_instance(other)
        return _OPERATORS if any(sure) and not (self._can_be_instance(one) and self._can_be_instance(other)) else None

    def _call(self, node: ast.Call) -> str | None:
        name = last(node)
        if name in _CAPTURES and (isinstance(node.func, ast.Attribute) or name in self._ours):
            return _PRINTS
        if name in _CONVERSIONS and any(map(self._is_instance, node.args)):
            return f"passes an instance of the response to {name}(), where methods of it would decide"
        if name in _RUNNERS and isinstance(node.func, ast.Attribute) and any(map(self._is_theirs, node.args)):
            return _AWAITS if isinstance(node.func.value, ast.Name) and node.func.value.id in _LOOPS else None
        return None

    def _check_context(self, node: ast.With | ast.AsyncWith) -> str | None:
        entered = [item.context_expr for item in node.items if id(item) not in self._understood]
        return _CONTEXTS if any(map(self._is_theirs, entered)) else None

    def _check_attribute(self, node: ast.Attribute) -> str | None:
        private = node.attr.startswith("__") and node.attr.endswith("__") and node.attr not in _ATTRIBUTES
        named = isinstance(node.value, ast.Name) and node.value.id not in self._known()
        if private and (named or self._is_theirs(node.value)):
            return f"reads {node.attr} of something of the response, which lives in another process"
        return None

    def _get_class_name(self, node: ast.expr) -> str | None:
        """Return the name of a node if it looks like a class of the response, or None."""
        name = node.id if isinstance(node, ast.Name) else ""
        return name if is_class_like(name) and name not in self._known() else None

    def _find_class(self, node: ast.expr) -> str | None:
        """Return the class that a node's value seems to be an instance of, or None if it does not seem to be one."""
        match node:
            case ast.Name(id=name):
                return self._class_of.get(name)
            case ast.Call(func=function):
                return self._get_class_name(function)
            case ast.BinOp(left=left, right=right):
                return self._find_class(left) and self._find_class(right)
            case ast.UnaryOp(op=ast.USub() | ast.UAdd() | ast.Invert(), operand=operand):
                return self._find_class(operand)
        return None

    def _can_be_instance(self, node: ast.expr) -> bool:
        return self._find_class(node) is not None

    def _is_instance(self, node: ast.expr) -> bool:
        return self._find_class(node) in self._classes

    def _can_hold_instance(self, node: ast.expr) -> bool:
        if isinstance(node, ast.List | ast.Tuple | ast.Set):
            return any(map(self._can_hold_instance, node.elts))
        return self._can_be_instance(node)

    def _is_member(self, node: ast.expr) -> bool:
        """Return True if a node looks like a member of an enumeration of the response: `Color.RED`."""
        return isinstance(node, ast.Attribute) and self._get_class_name(node.value) is not None and node.attr.isupper()

    def _is_theirs(self, node: ast.expr) -> bool:
        """Return True if the response returns a node's value: an instance of its classes, or a result of a function."""
        match node:
            case ast.Call(func=ast.Name(id=name)):
                return name not in self._known()
            case ast.Call(func=ast.Attribute(value=value)):
                return self._is_theirs(value)
        return self._is_instance(node)

    def _known(self) -> set[str]:
        return self._ours | PYTHON


def _is_stream(node: ast.expr) -> bool:
    owner = node.value.id if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) else ""
    return owner in {"sys", "builtins"} and isinstance(node, ast.Attribute) and node.attr in _STREAMS
