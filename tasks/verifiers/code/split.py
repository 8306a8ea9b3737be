"""Splits tests into the code that uses the response, and the code that compares its results.

    xs = [3, 1, 2]                               xs = [3, 1, 2]
    assert sorted(f(xs)) == [1, 2, 3]     ->     __once__(0, "xs = [3, 1, 2]")
                                                 assert __read__(lambda: sorted(__value__("f(xs)")) == [1, 2, 3])

The text in `__once__`, `__run__` and `__value__` runs in the process of the response, with Python's normal semantics.
The rest runs in the tests' process (`inside.checker`), on values that are parsed by exact type. The response's process
gets only the code that computes the arguments of its functions, and their calls. It never gets: the literals that an
assertion compares with, operators, comparisons, `isinstance` and other code that decides, functions of the tests that
get its results, and everything that these are computed from (`crossing`).

Code that cannot be rewritten stays as it is: then the tests call into the response by reference (`inside.wire`).
"""

from __future__ import annotations

import ast
import builtins
import copy
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from tasks.verifiers.code.crossing import PYTHON, UNSHIPPED, Crossing, NotUnderstoodError, call, list_packages
from tasks.verifiers.code.names import (
    find_bindings,
    find_bound_names,
    find_free_names,
    find_loaded_names,
    has,
    is_class_like,
    last,
    list_children,
    root,
    walk,
)
from tasks.verifiers.code.syntax import parse, unparse

_CAPTURES = {"redirect_stdout", "redirect_stderr", "patch", "object", "dict"}
"""Contexts that change the output or names of a process; the last two are `patch.object` and `patch.dict`."""
_JUDGEMENTS = (
    *(ast.Assert, ast.Raise, ast.Compare, ast.BoolOp, ast.IfExp, ast.If, ast.While, ast.Try, ast.TryStar, ast.Match),
    *(ast.Yield, ast.YieldFrom, ast.Await, ast.Global, ast.Nonlocal, ast.NamedExpr),
)


_EVALUATING = {"eval", "exec", "compile", "__import__"}
"""Builtins that are never taken from the response, as their argument may contain the expected result."""
_PERHAPS = (
    *(ast.Try, ast.TryStar, ast.If, ast.For, ast.While, ast.With, ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef),
    *(ast.Match, ast.Lambda, ast.ListComp, ast.SetComp, ast.DictComp, ast.GeneratorExp, ast.IfExp, ast.BoolOp),
)
"""Code that may skip a part of it, or catch what it raises."""


class Split(NamedTuple):
    """Tests after splitting.

    Attributes:
        setup: the setup as it runs in the tests' process.
        tests: the tests as they run in the tests' process.
        classes: names of the classes of the tests, whose instances are returned as data.
        crossing: the classes that the response's process has too, so that instances can be passed to it.
        trees: the original syntax trees of the given code, the setup and the tests.
        understood: the `id` of each node of the trees that runs in the response's process.
        asks: for each test, True if it cannot pass if the response defines nothing.
        theirs: for each test, names of Python that refer to functions of the response, and that it uses outside of the
            code that runs in the response's process.
    """

    setup: str
    tests: list[str]
    classes: list[str]
    crossing: list[str]
    trees: list[ast.Module]
    understood: set[int]
    asks: list[bool]
    theirs: list[list[str]]


def split(given: str, setup: str, tests: Sequence[str]) -> Split:
    """Return tests that request values from the response, or unchanged tests if they cannot be rewritten.

    Args:
        given: code that also runs with the response, before setup and tests.
        setup: code that runs before the tests.
        tests: the tests.
    """
    trees = [parse(source) for source in (given, setup, *tests)]
    for tree in trees:
        tree.body = [part for node in tree.body for part in _split_assignment(node)]
    splitter = _Splitter(trees, set())
    before, *split_tests = splitter.run()
    if splitter.asked_to_cross:  # the first pass did not know yet which names decide
        splitter = _Splitter(trees, splitter.find_deciding_names())
        before, *split_tests = splitter.run()
    given_classes = {node.name for node in trees[0].body if isinstance(node, ast.ClassDef)}
    crossing = sorted(splitter.crossing | given_classes)
    classes, understood = sorted(splitter.classes), splitter.understood
    return Split(before, split_tests, classes, crossing, trees, understood, splitter.asks, splitter.left)


def _split_assignment(node: ast.stmt) -> list[ast.stmt]:
    """Return assignments like `a, b = 1, 2` as two statements."""
    match node:
        case ast.Assign(targets=[ast.Tuple(elts=names)], value=ast.Tuple(elts=values)) if len(names) == len(values):
            stored = {root(name) for name in names if isinstance(name, ast.Name | ast.Attribute)}
            # Not `a, b = b, a`: as two statements, the second one would read what the first one has stored.
            simple = not any(isinstance(each, ast.Starred) or stored & find_loaded_names(each) for each in values)
            if simple and all(isinstance(each, ast.Name | ast.Attribute) for each in names):
                return [
                    ast.Assign([name], value, lineno=node.lineno) for name, value in zip(names, values, strict=True)
                ]
    return [node]


class _Splitter(Crossing):
    """Processes setup and tests in order, and rewrites each statement."""

    def run(self) -> list[str]:
        """Return setup and tests; the setup begins with the given code."""
        given, setup, *tests = self.trees
        self._needs_response = False
        self.asks: list[bool] = []
        lines = [*given.body, *self._convert_block(setup.body)]
        meant, running = [_find_response_names(test) for test in tests], []
        setup_asks = self._needs_response
        for test, theirs in zip(tests, meant, strict=True):
            self._needs_response = setup_asks
            running.append(self._convert_block(test.body, theirs))
            self.asks.append(self._needs_response)
        self.left = [
            sorted(theirs and theirs & find_loaded_names(ast.Module(body, [])))
            for theirs, body in zip(meant, running, strict=True)
        ]
        return ["\n".join(map(unparse, each)) for each in (lines, *running)]

    def find_deciding_names(self) -> set[str]:
        """Return the names that decide assertions, and all names that their values are computed from."""
        deciding: set[str] = set()
        new = self.judging & self.ours
        while new:
            deciding |= new
            binding = [node for tree in self.trees for node in tree.body if find_bindings(node) & new]
            new = {name for node in binding for name in find_loaded_names(node)} & self.ours - deciding
        return deciding

    def _convert_block(self, body: Iterable[ast.stmt], theirs: set[str] | None = None) -> list[ast.stmt]:
        self.shipped = set()  # a test begins in a new process if the one before did not end
        self.theirs = theirs or set()
        lines: list[ast.stmt] = []
        for node in body:
            written = self._convert_statement(node)
            lines += [*self.before, *written]
            self.before = []
        return lines

    def _convert_statement(self, node: ast.stmt) -> list[ast.stmt]:
        # The old value of a name that is assigned does not matter, so only the new one decides.
        bound_anew = isinstance(node, ast.Assign) and all(isinstance(each, ast.Name) for each in node.targets)
        if not self.touches(node.value if bound_anew and isinstance(node, ast.Assign) else node):
            return self._convert_pure(node)
        self._needs_response |= not self.depth and self._surely_asks(node)
        try:
            return self._convert_touching(node)
        except NotUnderstoodError:
            self.judging |= find_loaded_names(node)
            return [node]

    def _surely_asks(self, node: ast.AST) -> bool:
        """Return True if a statement fails if the response does not define a name."""
        if isinstance(node, _PERHAPS):
            return False
        if isinstance(node, ast.Name):
            return self.is_theirs(node.id) and not hasattr(builtins, node.id)
        return any(map(self._surely_asks, list_children(node)))

    def _convert_pure(self, node: ast.stmt) -> list[ast.stmt]:
        """Return a statement that does not use the response."""
        names, fails = find_bindings(node), self.can_fail(node)
        if fails:  # like an assertion, it decides whether the test passes
            self.judging |= find_loaded_names(node)
        elif not self.depth:
            self.pure.append(node)
        self.derived = self.derived | names if find_loaded_names(node) & self.derived else self.derived - names
        self.rebind(names)
        if self.depth or fails or not _is_state_change(node) or not self.hand(find_free_names(node) & self.ours, set()):
            return [node]
        if isinstance(node, ast.Assign) and root(node.targets[0]) == "sys":  # what that process prints is read there
            self.inside.add("sys")
            self.instances.add("sys")
        self.understood.add(id(node))
        return [node, ast.Expr(call("__run__", unparse(node)))]

    def _convert_touching(self, node: ast.stmt) -> list[ast.stmt]:
        match node:
            case ast.Assert(test=test, msg=message) if not has(test, UNSHIPPED):
                # A message does not change the verdict; if the response would compute a part of it, it is dropped.
                converted = _read(self.convert_expression(test))
                return [ast.Assert(converted, None if message and self.touches(message) else message)]
            case ast.Expr(value=value) if not self.is_inner(value):
                return [ast.Expr(_read(self.convert_expression(value), True))]
            case ast.Expr() | ast.Import() | ast.ImportFrom():
                return self._run_there(node)
            case ast.Delete(targets=targets) if all(self.is_stored_there(root(target)) for target in targets):
                return self._run_there(node)
            case ast.Assign() | ast.AnnAssign(value=ast.expr()):
                return self._convert_assignment(node)
        return self._changed(node, node.target) if isinstance(node, ast.AugAssign) else self._convert_compound(node)

    def _convert_compound(self, node: ast.stmt) -> list[ast.stmt]:
        match node:
            case ast.With(items=items) if all(self._is_entered_there(item.context_expr) for item in items):
                return self._convert_context(node)
            case ast.For() | ast.While() | ast.If() | ast.With() | ast.Try():
                return [self._convert_control(node)]
            case ast.FunctionDef():
                return [self._function(node)]
            case ast.ClassDef(name=name, bases=bases) if not self.depth and any(map(self.touches, bases)):
                # A class that derives from one of the response is defined there, unless it decides something.
                if name not in self.deciding and not has(node, _JUDGEMENTS) and not self.can_fail(node):
                    self.classes.discard(name)  # it is defined in the response's process
                    return self._run_there(node)
            case ast.ClassDef(body=body):
                changed = copy.copy(node)
                changed.body = [self._function(each) if isinstance(each, ast.FunctionDef) else each for each in body]
                others = [each for each in body if not isinstance(each, ast.FunctionDef)]
                self.judging |= {name for each in others for name in find_loaded_names(each)}
                return [changed]
        raise NotUnderstoodError

    def _convert_assignment(self, node: ast.Assign | ast.AnnAssign) -> list[ast.stmt]:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target]
        names, value = find_bindings(node), node.value or ast.Constant(None)
        roots = {root(target) for target in targets if isinstance(target, ast.Attribute | ast.Subscript)}
        if any(self.is_stored_there(name) or self.is_theirs(name) for name in roots):
            if self.touches(value) and not self.is_inner(value):
                raise NotUnderstoodError
            return self._run_there(node)
        part = isinstance(value, ast.Subscript) and self.is_stored_there(root(value))
        if not roots and (part or self.is_inner(value)) and not names & self.locals:
            lines = self._run_there(node)
            if isinstance(value, ast.Call) and is_class_like(last(value)):
                self.instances |= names
            return lines
        changed = copy.copy(node)
        changed.value = self.convert_expression(value)
        self.rebind(names)
        self.derived |= names | roots
        return [changed]

    def _changed(self, node: ast.AugAssign, target: ast.expr) -> list[ast.stmt]:
        if self.is_stored_there(root(target)):
            if self.touches(node.value) and not self.is_inner(node.value):
                raise NotUnderstoodError
            return self._run_there(node)
        changed = copy.copy(node)
        changed.value = self.convert_expression(node.value)
        self.derived.add(root(target))
        return [changed]

    def _run_there(self, node: ast.stmt) -> list[ast.stmt]:
        """Return code that runs a statement in the response's process, which then stores the names that it binds."""
        names = find_bindings(node)
        code, parameters = self.build_shipped_code(node)
        self.understood.add(id(node))
        source = unparse(code)
        if parameters:  # values of this process arrive as arguments, so the code becomes a function
            stored = [f"global {', '.join(sorted(names))}"] if names else []
            body = "\n".join(f"    {line}" for line in [*stored, *source.splitlines()])
            source = f"def __given__({', '.join(parameters)}):\n{body}"
        self.rebind(names)
        self.derived -= names
        self.inside |= names
        return [*list_packages(code), ast.Expr(call("__run__", source, **parameters))]

    def _convert_control(self, node: ast.For | ast.While | ast.If | ast.With | ast.Try) -> ast.stmt:
        """Return a statement that decides what runs. It decides in the tests' process."""
        changed = copy.copy(node)
        with self.open_scope(set()), self._deeper():
            match changed:
                case ast.For():
                    changed.iter = self.convert_expression(changed.iter)
                    self.locals |= set(find_bound_names(changed.target))  # each item is a value of this process
                case ast.While() | ast.If():
                    changed.test = self.convert_expression(changed.test)
                case ast.With(items=items):
                    changed.items = [
                        ast.withitem(self.convert_expression(each.context_expr), each.optional_vars) for each in items
                    ]
                    self.locals |= {
                        name for each in items if each.optional_vars for name in find_bindings(each.optional_vars)
                    }
                case ast.Try():
                    changed.handlers = [self._convert_handler(each) for each in changed.handlers]
                    changed.finalbody = self._convert_nested(changed.finalbody)
            changed.body = self._convert_nested(changed.body)
            if not isinstance(changed, ast.With):
                changed.orelse = self._convert_nested(changed.orelse)
        return changed

    def _convert_handler(self, node: ast.ExceptHandler) -> ast.ExceptHandler:
        kind = self.convert_expression(node.type) if node.type is not None else None
        with self.open_scope({node.name} if node.name else set()):
            return ast.ExceptHandler(kind, node.name, self._convert_nested(node.body))

    def _convert_nested(self, body: list[ast.stmt]) -> list[ast.stmt]:
        """Return the statements of a branch or loop.

        Names that they bind are stored in the tests' process: their values are only known at run time.
        """
        lines = []
        for node in body:
            if not isinstance(node, ast.Expr | ast.Assert | ast.For | ast.While | ast.If | ast.With | ast.Try):
                self.locals |= find_bindings(node) - self.inside - self.handed
            lines += self._convert_statement(node)
        return lines

    def _function(self, node: ast.FunctionDef) -> ast.FunctionDef:
        """Return a function of the tests. It runs in the tests' process, and requests values."""
        # Global names are stored outside of it, and a generator pauses in between: such functions stay as they are.
        if has(node, (ast.Global, ast.Nonlocal, ast.Yield, ast.YieldFrom)):
            self.judging |= find_loaded_names(node)
            return node
        self.judging |= find_loaded_names(node.args)
        changed = copy.copy(node)
        # The body runs later, if at all: what it stores says nothing about the statements after the definition.
        lived = set(self.inside), set(self.handed), set(self.derived), set(self.instances)
        with self.open_scope(set(find_bound_names(node)) - {node.name}), self._deeper():
            changed.body = [line for each in node.body for line in self._convert_statement(each)]
        self.inside, self.handed, self.derived, self.instances = lived
        return changed

    def _is_entered_there(self, context: ast.expr) -> bool:
        return self.is_inner(context) or last(context) in _CAPTURES

    def _convert_context(self, node: ast.With) -> list[ast.stmt]:
        """Return code that enters a context in the response's process, because it changes its output or names."""
        entered: list[ast.stmt] = []
        left: list[ast.stmt] = []
        for number, item in enumerate(node.items):
            name, target = f"__context_{self.depth}_{number}", item.optional_vars
            enter = ast.parse(f"{name}.__enter__()", mode="eval").body
            streams = find_free_names(item.context_expr) & (self.ours | self.locals)
            if not self.touches(item.context_expr) and (streams & self.locals or not self.hand(streams, streams)):
                raise NotUnderstoodError
            entered += self._run_there(ast.Assign([ast.Name(name, ast.Store())], item.context_expr, lineno=node.lineno))
            if isinstance(target, ast.Name):
                self.locals.discard(target.id)
            entered += self._run_there(
                ast.Expr(enter) if target is None else ast.Assign([target], enter, lineno=node.lineno)
            )
            self.understood |= {id(item.context_expr), id(item)}
            # In reverse order, as Python leaves several contexts.
            left = [ast.Expr(call("__run__", f"{name}.__exit__(None, None, None)")), *left]
        with self._deeper():
            body = self._convert_nested(node.body)
        return [*entered, ast.Try(body, [], [], left)]

    @contextmanager
    def _deeper(self) -> Iterator[None]:
        """Enter code that may run never, or more than once."""
        self.depth += 1
        try:
            yield
        finally:
            self.depth -= 1


def _find_response_names(tree: ast.Module) -> set[str]:
    """Return names of Python that must refer to a function of the response in a test.

    A module cannot be called, so `bisect(...)` is the response's. A builtin is the response's if an assertion compares
    a call of it and contains no other name, as in `assert sum(10, 15) == 6`: its result is then a result of the
    response like any other. (In `assert abs(f(1) - 2) < 0.1` the response's `abs` would decide about its own result.)
    """
    called = {node.func.id for node in walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    theirs = {name for name in called if name in sys.stdlib_module_names and not hasattr(builtins, name)}
    names = {node.id for node in walk(tree) if isinstance(node, ast.Name)}
    match tree.body:
        case [ast.Assert(test=ast.Compare(left=ast.Call(func=ast.Name(id=name))))] if names == {name}:
            return theirs | ({name} - _EVALUATING if hasattr(builtins, name) else set())
    return theirs


def _is_state_change(node: ast.stmt) -> bool:
    """Return True if a statement changes state of Python: a seed, a stream, a limit."""
    match node:
        case ast.Expr(value=ast.Call(func=ast.Attribute() as changed)):
            return root(changed) in PYTHON - {"self"}
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript() as changed]):
            return root(changed) in PYTHON - {"self"}
    return False


def _read(node: ast.expr, *options: bool) -> ast.expr:
    nothing = ast.arguments([], [], None, [], [], None, [])
    return call("__read__", ast.Lambda(nothing, node), *options)
