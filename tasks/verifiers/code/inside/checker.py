"""The process that holds the tests, and asks the process that holds the response for what they need of it.

A name that a test uses and neither it, its setup nor Python defines is the response's. Builtins, and modules of the
standard library even where the test forgot to import them, are always Python's own: a response that defines `abs` or
`math` changes nothing here.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import socket
import sys
import types
from typing import Any

from tasks.verifiers.code.inside.standins import RAISED_THERE
from tasks.verifiers.code.inside.wire import Peer, Remote, WireError

ALIASES = {"np": "numpy", "pd": "pandas", "plt": "matplotlib.pyplot", "nx": "networkx", "sp": "scipy"}
"""Customary short names of packages, which a test may use without importing them."""
PACKAGES = (*ALIASES.values(), "pytest", "scipy", "sympy", "torch", "sklearn", "numpy", "pandas", "networkx")
"""Names of third-party packages that are never taken for the response's."""

EVALUATING = {"eval", "exec", "compile", "__import__"}
"""Builtins that are never taken from the response, as their argument may hold the expected result."""


class MissingModuleError(Exception):
    """A test needs a module that this Python lacks, for which no response can be blamed."""


def serve(orders: socket.socket, response: socket.socket) -> None:
    """Run one test after another until `orders` is closed: `{"run": source}` gives `{"passed", "detail", ...}`."""
    checker = _Checker(Peer(response, _refuse))
    instructions = Peer(orders, _refuse)
    while True:
        instructions.send(checker.run(instructions.receive()["run"]))


class _Checker:
    def __init__(self, response: Peer) -> None:
        response._answer = self._call_back
        self._names = _Names(response)

    def run(self, source: str) -> dict[str, Any]:
        """Run one test, and return its verdict.

        Its keys: `passed`; `detail`, why not; `cannot`, the test cannot be judged; `gone`, the response's process has
        ended.
        """
        verdict = {"passed": False, "detail": "", "cannot": False, "gone": False}
        try:
            tree = ast.parse(source)
            self._names.take(_named_as_ours(tree))
            exec(compile(tree, "test", "exec"), self._names)  # noqa: S102 - this is the sandbox
        except WireError as error:
            return verdict | {"detail": f"the response's process ended: {error}", "gone": True}
        except (MissingModuleError, ModuleNotFoundError) as error:
            ours = RAISED_THERE not in getattr(error, "__notes__", [])
            return verdict | {"detail": _shown(error), "cannot": ours}
        except BaseException as error:
            return verdict | {"detail": _shown(error)}
        return verdict | {"passed": True}

    def _call_back(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let the response call a function that a test handed to it, and nothing else of this process."""
        peer = self._names.response
        function = peer.object_at(request["of"])
        if request["op"] != "call" or not _harmless(function):
            raise TypeError("only functions that a test hands over can be called")
        return {"value": peer.encode(function(*(peer.decode(argument) for argument in request["arguments"])))}


class _Names(dict[str, Any]):
    """The globals of the tests, which look unknown names up in the response."""

    def __init__(self, response: Peer) -> None:
        super().__init__(__name__="tests", __builtins__=builtins)
        self.response = response

    def take(self, names: set[str]) -> None:
        """Take these names from the response where it defines them, before Python's own are looked at."""
        for name in names - set(self):
            try:
                self[name] = self.response.decode(self.response.ask(op="name", name=name)["value"])
            except NameError:
                continue

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or (name.startswith("__") and name.endswith("__")):
            raise KeyError(name)
        if name in sys.stdlib_module_names:
            value: Any = importlib.import_module(name)
        elif name in ALIASES or name in PACKAGES:
            try:
                value = importlib.import_module(ALIASES.get(name, name))
            except ModuleNotFoundError:
                raise MissingModuleError(f"the test needs {ALIASES.get(name, name)}") from None
        else:
            value = self.response.decode(self.response.ask(op="name", name=name)["value"])
        self[name] = value
        return value


def _named_as_ours(tree: ast.Module) -> set[str]:
    """Return names of Python's by which a test must mean the response's function.

    A module cannot be called, so `bisect(...)` is the response's. A builtin is the response's where an assertion
    compares a call of it and names nothing else, as in `assert sum(10, 15) == 6`: its result is then an answer like any
    other. (In `assert abs(f(1) - 2) < 0.1` the response's own `abs` would be the judge of its answer.)
    """
    called = {node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    theirs = {name for name in called if name in sys.stdlib_module_names and not hasattr(builtins, name)}
    names = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
    match tree.body:
        case [ast.Assert(test=ast.Compare(left=ast.Call(func=ast.Name(id=name))))] if names == {name}:
            return theirs | ({name} - EVALUATING if hasattr(builtins, name) else set())
    return theirs


def _harmless(function: Any) -> bool:
    """Return True if a response may call this function here: it neither reads files nor runs code."""
    if isinstance(function, types.BuiltinFunctionType):
        return function.__module__ != "builtins"
    return isinstance(function, types.FunctionType)


def _refuse(request: dict[str, Any]) -> Any:
    raise TypeError("nothing can be asked here")


def _shown(error: BaseException) -> str:
    text = "" if isinstance(error, Remote) else str(error)
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
