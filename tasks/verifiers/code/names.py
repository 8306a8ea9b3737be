"""Analyses names in the code of tests: the names that code binds, reads and begins with, and names of classes."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from tasks.verifiers.code.syntax import unparse

_TRIVIAL = (None, True, False, 0, 1, -1, 2, "", ...)
_LEAVES = frozenset(
    (
        *(ast.Name, ast.Constant, ast.alias, ast.Pass, ast.Break, ast.Continue, ast.Global, ast.Nonlocal),
        *(kind for base in (ast.boolop, ast.operator, ast.unaryop, ast.cmpop) for kind in base.__subclasses__()),
    )
)
"""Kinds of nodes that contain no others, except a context."""


def find_bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that test code binds, including its functions and comprehensions."""
    for node in walk(tree):
        if isinstance(node, ast.Name):
            if isinstance(node.ctx, ast.Store):
                yield node.id
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.ExceptHandler):
            if node.name is not None:
                yield node.name
        elif isinstance(node, ast.alias):
            yield node.asname or node.name.partition(".")[0]


def find_bindings(node: ast.AST) -> set[str]:
    """Return the names that a statement binds in its own scope, not in its functions and comprehensions."""
    match node:
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
            return {name}
        case ast.Name(id=name, ctx=ast.Store() | ast.Del()):
            return {name}
        case ast.alias():
            return set(find_bound_names(node))
        case ast.Lambda() | ast.ListComp() | ast.SetComp() | ast.DictComp() | ast.GeneratorExp():
            return set()
        case ast.ExceptHandler(name=str(name)):
            return {name, *(each for part in node.body for each in find_bindings(part))}
    return {name for part in list_children(node) for name in find_bindings(part)}


def find_loaded_names(node: ast.AST) -> set[str]:
    """Return the names that are read anywhere in this code."""
    return {each.id for each in walk(node) if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Store)}


def find_own_names(node: ast.AST) -> set[str]:
    """Return the names that an expression or a function binds only in its own scope."""
    if isinstance(node, ast.Lambda | ast.FunctionDef | ast.AsyncFunctionDef):
        names = {each.arg for each in walk(node.args) if isinstance(each, ast.arg)}
        return names if isinstance(node, ast.Lambda) else names | set(find_bound_names(ast.Module(node.body, [])))
    if isinstance(node, ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp):
        return {name for each in node.generators for name in find_bound_names(each.target)}
    return set()


def find_free_names(node: ast.AST) -> set[str]:
    """Return the names that this code reads and does not bind in its own scopes."""
    return find_loaded_names(node) - {name for each in walk(node) for name in find_own_names(each)}


def find_whole_names(node: ast.AST) -> set[str]:
    """Return the names whose objects themselves are part of the value of an expression."""
    match node:
        case ast.Name(id=name):
            return {name}
        case ast.List(elts=parts) | ast.Tuple(elts=parts) | ast.Set(elts=parts) | ast.Dict(values=parts):
            return {name for part in parts for name in find_whole_names(part)}
        case ast.Starred(value=value) | ast.keyword(value=value):
            return find_whole_names(value)
    return set()


def root(node: ast.AST) -> str:
    """Return the name at the beginning of `name.part[0].part`, or an empty string if there is none."""
    while isinstance(node, ast.Attribute | ast.Subscript | ast.Starred):
        node = node.value
    return node.id if isinstance(node, ast.Name) else ""


def last(node: ast.AST) -> str:
    """Return the name at the end of `part.name`, or of a call of it, or an empty string if there is none."""
    if isinstance(node, ast.Call):
        node = node.func
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def has(node: ast.AST, kinds: tuple[type[ast.AST], ...]) -> bool:
    """Return True if there is a node of one of these kinds."""
    return any(isinstance(each, kinds) for each in walk(node))


def list_children(node: ast.AST) -> list[ast.AST]:
    """Return the child nodes of a node except its context (load or store); faster than Python's own function."""
    parts: list[ast.AST] = []
    if node.__class__ in _LEAVES:
        return parts
    values = node.__dict__
    for name in node._fields:
        value = values.get(name)
        if value.__class__ is list:
            parts += [each for each in value if isinstance(each, ast.AST)]
        elif isinstance(value, ast.AST) and not isinstance(value, ast.expr_context):
            parts.append(value)
    return parts


def walk(node: ast.AST) -> Iterator[ast.AST]:
    """Yield a node and all nodes in it, in the order of `ast.walk`."""
    nodes = [node]
    for part in nodes:
        yield part
        if part.__class__ not in _LEAVES:
            nodes += list_children(part)


def is_class_like(name: str) -> bool:
    """Return True if a name looks like a class: it begins with a capital letter, and is not a constant."""
    return name[:1].isupper() and "_" not in name and (len(name) == 1 or not name.isupper())


def is_record(node: ast.ClassDef) -> bool:
    """Return True for a class without its own methods and literals: its instances consist of their attributes.

    Members of an enumeration are not secret.
    """
    functions = [each for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)]
    if any(not each.name.startswith("__") or each.name == "__call__" for each in functions):
        return False
    values = [each.value for each in node.body if isinstance(each, ast.Assign | ast.AnnAssign) and each.value]
    constants = [each.value for value in values for each in walk(value) if isinstance(each, ast.Constant)]
    return any("Enum" in unparse(base) for base in node.bases) or all(each in _TRIVIAL for each in constants)
