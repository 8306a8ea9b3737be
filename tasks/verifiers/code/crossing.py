"""Decides which code of a test may run in the process of the response, and what that process must never see.

Some names of the tests are stored in that process: names bound to a result of the response (`inside`), and names that
were passed to it (`handed`). Code that changes them runs there. Names that were computed here, in the tests' process,
from values of the response stay here (`derived`). So does everything that decides: what an assertion compares with, and
what that is computed from.
"""

from __future__ import annotations

import ast
import builtins
import copy
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from tasks.verifiers.code.inside.modules import ALIASES, PACKAGES
from tasks.verifiers.code.names import (
    find_bindings,
    find_bound_names,
    find_free_names,
    find_loaded_names,
    find_own_names,
    find_whole_names,
    has,
    is_class_like,
    is_record,
    last,
    list_children,
    root,
    walk,
)
from tasks.verifiers.code.syntax import unparse

PYTHON = {*dir(builtins), *sys.stdlib_module_names, *ALIASES, *PACKAGES, "self", "__file__"}
"""Names that are never assumed to be defined by the response."""
SOLUTION = "solution"
"""The module name of the response for imports in a test."""
UNSHIPPED = (ast.Yield, ast.YieldFrom, ast.Await, ast.NamedExpr)
"""Expressions that are not rewritten."""

_MUTATORS = {
    *("append", "extend", "insert", "remove", "pop", "clear", "sort", "reverse", "add", "discard", "update"),
    *("popitem", "setdefault", "popleft", "appendleft", "extendleft", "rotate", "send", "throw", "close", "write"),
    *("push", "enqueue", "dequeue", "put", "read", "readline"),
}
"""Methods that change their object, and are therefore called in the process that stores it."""
_DECIDES = (ast.Compare, ast.BoolOp, ast.IfExp)
_MAKES_CLASS = {"namedtuple", "NamedTuple", "make_dataclass", "Enum", "IntEnum"}


class NotUnderstoodError(Exception):
    """A statement cannot be rewritten, and stays as it is."""


class Crossing:
    """Tracks which process stores each name, and rewrites the expressions of tests so that they request values."""

    def __init__(self, trees: Sequence[ast.Module], deciding: set[str]) -> None:
        """Start before the first statement.

        Args:
            trees: the code that also runs with the response, the setup, and the tests.
            deciding: names of the tests that decide the outcome of assertions.
        """
        self.trees = trees
        self.ours = {name for tree in trees for name in find_bound_names(tree)}
        self.given = {name for node in trees[0].body for name in find_bindings(node)}
        self.deciding = deciding
        self.judging: set[str] = set()
        self.classes: set[str] = set()
        self.crossing: set[str] = set()
        self.asked_to_cross = False
        self.inside: set[str] = set()
        self.handed: set[str] = set()
        self.derived: set[str] = set()
        self.instances: set[str] = set()
        self.theirs: set[str] = set()
        self.locals: set[str] = set()
        self.pure: list[ast.stmt] = []
        self.shipped: set[int] = set()
        self.before: list[ast.stmt] = []
        self.depth = 0
        self.understood: set[int] = set()
        self._kinds: dict[str, str] = {}
        self._records: set[str] = set()
        self._judges: set[str] = set()
        self._known: dict[int, tuple[ast.AST, frozenset[str]]] = {}
        for tree in trees:
            for node in tree.body:
                self._record_kinds(node)

    def _record_kinds(self, node: ast.stmt) -> None:
        match node:
            case ast.Import() | ast.ImportFrom():
                self._kinds |= dict.fromkeys(find_bindings(node), "import")
            case ast.ClassDef(name=name):
                self._kinds[name] = "class"
                self.classes.add(name)
                self._records |= {name} if is_record(node) else set()
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
                self._kinds[name] = "function"
            case ast.Assign(targets=[ast.Name(id=name)], value=ast.Call() as made) if last(made) in _MAKES_CLASS:
                self._kinds[name] = "class"
                self.classes.add(name)
                self._records.add(name)
            case _:
                for name in find_bindings(node):
                    self._kinds.setdefault(name, "data")
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) and self.can_fail(node):
            self._judges.add(node.name)

    def can_fail(self, node: ast.AST) -> bool:
        """Return True if this code may fail intentionally."""
        return bool(find_loaded_names(node) & self._judges) or any(
            isinstance(each, ast.Assert | ast.Raise)
            or (isinstance(each, ast.Attribute) and each.attr.lower().startswith(("assert", "fail")))
            for each in walk(node)
        )

    # Locations of names.

    def is_theirs(self, name: str) -> bool:
        """Return True for a name that the response defines."""
        if name in self.locals or name in self.given:
            return False
        return name in self.theirs or (name not in self.ours and name not in PYTHON)

    def is_stored_there(self, name: str) -> bool:
        """Return True for a name of the tests that is stored in the response's process."""
        return name not in self.locals and (name in self.inside or name in self.handed)

    def touches(self, node: ast.AST) -> bool:
        """Return True if this code uses the response."""
        if isinstance(node, ast.ImportFrom) and node.module == SOLUTION:
            return True
        if isinstance(node, ast.Import) and any(alias.name == SOLUTION for alias in node.names):
            return True
        names = self._collect_names(node) - find_own_names(node)
        return any(self.is_theirs(name) or self.is_stored_there(name) for name in names)

    def rebind(self, names: set[str]) -> None:
        """Record that the response's process no longer stores names, because the tests bind them to other values."""
        self.inside -= names
        self.handed -= names
        self.instances -= names

    def _collect_names(self, node: ast.AST) -> frozenset[str]:
        # The node is stored with its names: the `id` alone may be that of an earlier node, which is gone.
        known = self._known.get(id(node))
        if known is not None and known[0] is node:
            return known[1]
        names = {node.id} if isinstance(node, ast.Name) else set()
        for child in list_children(node):
            names |= self._collect_names(child)
        self._known[id(node)] = node, frozenset(names)
        return self._known[id(node)][1]

    @contextmanager
    def open_scope(self, names: set[str]) -> Iterator[None]:
        """Enter code with its own names."""
        before = set(self.locals)
        self.locals |= names
        try:
            yield
        finally:
            self.locals = before

    # Expressions.

    def convert_expression(self, node: ast.expr) -> ast.expr:
        """Return an expression that is computed here, from values that the response's process returns."""
        if not self.touches(node):
            self.judging |= find_loaded_names(node)
            return node
        if isinstance(node, ast.Name) and node.id in self.handed and node.id not in self.locals:
            self.judging.add(node.id)
            self.hand({node.id}, {node.id})
            return call("__handed__", node.id)
        if self.is_inner(node):
            return self._asked(node)
        changed = copy.copy(node)
        if isinstance(changed, ast.Call) and isinstance(changed.func, ast.Attribute):
            # A method of a value is called here, because its arguments may be the expected result.
            changed.func = ast.Attribute(self.convert_expression(changed.func.value), changed.func.attr, ast.Load())
            changed.args = [self.convert_expression(each) for each in changed.args]
            changed.keywords = [ast.keyword(each.arg, self.convert_expression(each.value)) for each in changed.keywords]
            return changed
        # Neither a call of the response nor a name: its parts are computed here, one by one.
        with self.open_scope(find_own_names(node)):
            for field, value in ast.iter_fields(node):
                if isinstance(value, list):
                    setattr(changed, field, [self._convert_part(each) for each in value])
                elif isinstance(value, ast.AST):
                    setattr(changed, field, self._convert_part(value))
        return changed

    def _convert_part(self, node: ast.AST) -> ast.AST:
        match node:
            case ast.expr():
                return self.convert_expression(node)
            case ast.keyword(arg=name, value=value):
                return ast.keyword(name, self.convert_expression(value))
            case ast.comprehension(target=target, iter=items, ifs=ifs, is_async=is_async):
                return ast.comprehension(
                    target, self.convert_expression(items), [self.convert_expression(each) for each in ifs], is_async
                )
        return node

    def is_inner(self, node: ast.expr) -> bool:
        """Return True if an expression is a result of the response: a call of its function, or an attribute.

        A subscript is not, except on an instance: values are subscripted here, because the key may be the expected
        result.
        """
        match node:
            case ast.Name(id=name):
                return self.is_theirs(name) or (name in self.inside and name not in self.locals)
            case ast.Call(func=function):
                return self._is_inner_call(node, function) and not has(node, UNSHIPPED)
            case ast.Attribute(value=value):
                return self.is_inner(value)
            case ast.Subscript(value=value):
                return self._is_instance(value) and not has(node, UNSHIPPED)
        return False

    def _is_inner_call(self, node: ast.Call, function: ast.expr) -> bool:
        if isinstance(function, ast.Name):
            return self.is_inner(function)
        if not isinstance(function, ast.Attribute) or function.attr.startswith("__"):  # an __eq__ must not decide
            return False
        if self.touches(function.value):
            changes = function.attr in _MUTATORS and self.is_stored_there(root(function.value))
            return changes or self._is_instance(function.value)
        return unparse(function) == "asyncio.run" and len(node.args) == 1 and self.is_inner(node.args[0])

    def _is_instance(self, node: ast.expr) -> bool:
        """Return True for what seems to be an instance, a class or a module of the response, with its own methods."""
        match node:
            case ast.Name(id=name):
                return self.is_theirs(name) or (name in self.instances and name not in self.locals)
            case ast.Call(func=ast.Name(id=name)):
                return self.is_theirs(name) and is_class_like(name)
            case ast.Attribute(value=value):
                return self._is_instance(value)
        return False

    def _asked(self, node: ast.expr) -> ast.expr:
        try:
            code, parameters = self.build_shipped_code(node)
        except NotUnderstoodError:
            self.judging |= find_loaded_names(node)
            return node
        self.understood.add(id(node))
        source = unparse(code)
        return call("__value__", f"lambda {', '.join(parameters)}: ({source})" if parameters else source, **parameters)

    # What is sent to the response's process.

    def build_shipped_code(self, node: ast.AST) -> tuple[ast.AST, dict[str, ast.expr]]:
        """Return code for the response's process, and the values by name that it needs from this process.

        Raises:
            NotUnderstoodError: it would have to run in both processes.
        """
        parameters: dict[str, ast.expr] = {}
        if not self._collect_names(node) & (self.ours | self.locals) and not has(node, _DECIDES):
            return node, parameters
        return self._ship(copy.deepcopy(node), find_own_names(node), parameters), parameters

    def _ship(self, node: ast.AST, own: set[str], parameters: dict[str, ast.expr]) -> ast.AST:
        stored = isinstance(getattr(node, "ctx", None), ast.Store)
        if isinstance(node, ast.expr) and not self.touches(node) and not stored:
            return self._ship_argument(node, own, parameters)
        if isinstance(node, _DECIDES):  # decisions are made here
            if own & find_loaded_names(node):  # it needs values that only exist there
                raise NotUnderstoodError
            return _add_parameter(self.convert_expression(node), parameters)
        if isinstance(node, ast.Name) and node.id in self.handed and node.id not in own:
            self.hand({node.id}, {node.id})
        inner = own | find_own_names(node)
        for field, value in ast.iter_fields(node):
            if isinstance(value, list):
                parts = [self._ship(each, inner, parameters) if isinstance(each, ast.AST) else each for each in value]
                setattr(node, field, parts)
            elif isinstance(value, ast.AST):
                setattr(node, field, self._ship(value, inner, parameters))
        return node

    def _ship_argument(self, node: ast.expr, own: set[str], parameters: dict[str, ast.expr]) -> ast.expr:
        """Return an argument as code, or as the name of its value if the code would reveal too much."""
        names = (find_free_names(node) & (self.ours | self.locals)) - own - self.given
        if not names or (not names & self.locals and self.hand(names, find_whole_names(node))):
            return node
        if isinstance(node, ast.Starred):
            return ast.Starred(self._ship_argument(node.value, own, parameters), node.ctx)
        if find_loaded_names(node) & own:  # such as the variable of a comprehension, which has no value here
            raise NotUnderstoodError
        for record in sorted(self._records - self.crossing):  # the value may be an instance of it
            self.hand({record}, set())
        self.judging |= find_loaded_names(node)
        return _add_parameter(node, parameters)

    def hand(self, names: set[str], as_they_are: set[str]) -> bool:
        """Run the statements that make these names in the response's process; return False if it must not see them.

        Args:
            names: the names.
            as_they_are: the names whose objects are passed to the response, which may change them.
        """
        self.asked_to_cross = True
        needed = names - self.inside
        statements = self._find_makers(needed, as_they_are)
        if statements is None:
            return False
        for number in sorted(statements - self.shipped):  # in the order of the tests
            self.shipped.add(number)
            code = self.pure[number]
            once = call("__once__", number, unparse(code))
            self.before += [*list_packages(code), ast.Expr(once)]
            needed |= find_bindings(code)
        self.handed |= {name for name in needed if self._kinds.get(name) == "data"}
        self.crossing |= needed & self.classes
        return True

    def _find_makers(self, names: set[str], as_they_are: set[str]) -> set[int] | None:
        """Return the numbers of the statements that make these names and all they need, or None if one must stay."""
        seen, new, given = set[str](), set(names), set(as_they_are)
        statements: set[int] = set()
        while new:
            name = new.pop()
            seen.add(name)
            if name in self.given:
                continue
            if not self._can_cross(name, given):
                return None
            # A list may be filled after it was made, by a statement that binds nothing: `xs.append(1)`.
            is_data = self._kinds[name] == "data"
            made = [n for n, node in enumerate(self.pure) if name in find_bindings(node)]
            changed = [
                n
                for n, node in enumerate(self.pure)
                if is_data and not find_bindings(node) and name in find_loaded_names(node)
            ]
            if not made:
                return None
            for number in (*made, *changed):
                node = self.pure[number]
                if name in given and isinstance(node, ast.Assign):
                    given |= find_whole_names(node.value)
                new |= (find_bindings(node) | (find_free_names(node) & self.ours)) - seen
            statements |= {*made, *changed}
        return statements

    def _can_cross(self, name: str, as_they_are: set[str]) -> bool:
        kind = self._kinds.get(name)
        # What was computed here from results stays here, and so do functions that may raise or assert.
        if kind is None or name in self.derived | self.locals | self._judges:
            return False
        if kind == "data" and self.depth and name not in self.handed:
            return False  # it may change before or while this code runs
        if name not in self.deciding or kind == "import":
            return True
        # It decides, too: only a class without own methods may cross, or an object that the response gets anyway.
        return name in self._records or (kind == "data" and name in as_they_are)


def call(name: str, *arguments: ast.expr | str | int, **parameters: ast.expr) -> ast.Call:
    """Return the call of a function with constants or expressions, and keyword arguments."""
    given = [each if isinstance(each, ast.expr) else ast.Constant(each) for each in arguments]
    return ast.Call(ast.Name(name, ast.Load()), given, [ast.keyword(*each) for each in parameters.items()])


def list_packages(node: ast.AST) -> list[ast.stmt]:
    """Return statements that name the packages of some code, so that missing ones are detected with the tests."""
    missing = sorted(find_loaded_names(node) & {*ALIASES, *PACKAGES})
    return [ast.Expr(ast.Name(name, ast.Load())) for name in missing]


def _add_parameter(node: ast.expr, parameters: dict[str, ast.expr]) -> ast.expr:
    name = f"__{len(parameters)}"
    parameters[name] = node
    return ast.Name(name, ast.Load())
