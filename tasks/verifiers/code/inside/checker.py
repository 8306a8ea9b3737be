"""Runs the tests in their own process, and requests values from the process that runs the response.

Tests are split (`tasks.verifiers.code.split`): code that uses the response runs in its process, and comparisons run
here. A name that a test uses and neither it, its setup nor Python defines is looked up in the response. Builtins, and
modules of the standard library even if the test forgot to import them, are always Python's own: a response that defines
`abs` or `math` changes nothing here.
"""

from __future__ import annotations

import builtins
import importlib
import socket
import sys
import types
from collections.abc import Callable
from typing import Any

from tasks.verifiers.code.inside.modules import ALIASES, MODULES, MainModule
from tasks.verifiers.code.inside.proxies import RAISED_THERE
from tasks.verifiers.code.inside.wire import VALUE, Peer, Remote, WireError, take_over

_UNCHANGING = (type(None), bool, int, float, complex, str, bytes, range, type, types.FunctionType)


class MissingModuleError(Exception):
    """A test needs a module that this Python lacks, which is not the fault of the response."""


def serve(orders: socket.socket, response: socket.socket) -> None:
    """Run one test after another until `orders` is closed.

    The first request is `{"classes", "crossing"}` (`split.Split`). Each other one, `{"run": source, "theirs": names}`,
    is answered with `{"passed", "detail", ...}`.
    """
    checker = _Checker(Peer(response, _refuse))
    instructions = Peer(orders, _refuse)
    checker.begin(instructions.receive())
    while True:
        order = instructions.receive()
        instructions.send(checker.run(order["run"], order["theirs"]))


class _Checker:
    def __init__(self, response: Peer) -> None:
        response._answer = self._call_back
        self._peer = response
        self._names = _Names(response)
        self._answers: list[dict[str, Any]] = []
        self._repeated: list[dict[str, Any]] = []
        self._reading = False
        self._done: set[int] = set()
        self._names.update(
            __run__=self._run,
            __once__=self._run_once,
            __value__=self._compute_value,
            __handed__=self._fetch_handed,
            __read__=self._read,
        )
        sys.modules["__main__"] = MainModule(self._names)

    def begin(self, order: dict[str, Any]) -> None:
        """Set the names of the tests' classes, whose instances are data."""
        self._peer.named, self._peer.classes = _Classes(self._names, order["classes"]), order["crossing"]

    def run(self, source: str, theirs: list[str]) -> dict[str, Any]:
        """Run one test and return its verdict. Names of Python in `theirs` may refer to functions of the response.

        Its keys: `passed`; `detail`, the reason for a failure; `cannot`, True if the test cannot be verified; `gone`,
        True if the response's process has ended.
        """
        verdict = {"passed": False, "detail": "", "cannot": False, "gone": False}
        taken: set[str] = set()
        try:
            taken = self._names.take(theirs)
            exec(compile(source, "test", "exec", dont_inherit=True), self._names)  # noqa: S102 - this is the sandbox
        except WireError as error:
            return verdict | {"detail": f"the response's process ended: {error}", "gone": True}
        except (MissingModuleError, ModuleNotFoundError) as error:
            ours = RAISED_THERE not in getattr(error, "__notes__", [])
            return verdict | {"detail": _describe_error(error), "cannot": ours}
        except BaseException as error:
            return verdict | {"detail": _describe_error(error)}
        finally:
            self._names.give_back(taken)
        return verdict | {"passed": True}

    def _run(self, code: str, /, **given: Any) -> None:
        """Run a statement of the test in the response's process."""
        self._asked(code, given)

    def _run_once(self, number: int, code: str) -> None:
        """Run a statement that makes arguments in the response's process, unless it has been run before."""
        if number not in self._done:
            self._done.add(number)
            self._asked(code, {})

    def _compute_value(self, code: str, /, **given: Any) -> Any:
        """Return the value of an expression of the test, from the response's process."""
        return self._asked(VALUE + code, given)

    def _asked(self, code: str, given: dict[str, Any]) -> Any:
        if self._repeated:
            answer = self._repeated.pop(0)
        else:
            parts = list(given.values())
            request = {"op": "run", "code": code, "names": [*given], "given": self._peer.encode_all(parts)}
            answer = self._peer.ask(**request, fresh=not self._reading or not self._answers)
            self._answers.append(answer)
        return take_over(self._peer, list(given.values()), answer)

    def _fetch_handed(self, name: str) -> Any:
        """Return the value of a variable that was passed to the response, which may have changed its contents."""
        value = self._names.get(name)
        return value if _is_unchanging(value) else self._compute_value(name)

    def _read(self, compute: Callable[[], Any], as_it_is: bool = False) -> Any:
        """Return the value that a test computes from values of the response.

        If it is false and there were arrays or numbers of numpy, it is computed again from the same values as lists and
        Python's numbers, because a test may mean either.
        """
        if self._reading:  # a function of the tests, whose assertions are computed with the outer ones
            return compute()
        self._answers, self._peer.known = [], {}
        self._reading = True
        try:
            return self._compute_twice(compute, as_it_is)
        finally:
            self._reading = False

    def _compute_twice(self, compute: Callable[[], Any], as_it_is: bool) -> Any:
        try:
            result = compute()
            if as_it_is or result:
                return result
        except WireError:
            raise
        except Exception:
            if not any(map(_has_numpy, self._answers)):
                raise
        else:
            if not any(map(_has_numpy, self._answers)):
                return result
        self._repeated, self._peer.arrays, self._peer.known = [*self._answers], False, {}
        try:
            return compute()
        finally:
            self._repeated, self._peer.arrays = [], True

    def _call_back(self, request: dict[str, Any]) -> dict[str, Any]:
        """Let the response call a function that a test passed to it, and nothing else in this process."""
        peer = self._names.response
        function = peer.find_object(request["of"])
        if request["op"] != "call" or not _is_harmless(function):
            raise TypeError("only functions that a test passes can be called")
        given = peer.decode_all(request["arguments"])
        keywords = dict(zip(request["keywords"], given[len(given) - len(request["keywords"]) :], strict=True))
        return {"value": peer.encode(function(*given[: len(given) - len(keywords)], **keywords))}


class _Names(dict[str, Any]):
    """The globals of the tests, which look up unknown names in the response."""

    def __init__(self, response: Peer) -> None:
        super().__init__(__name__="__main__", __builtins__=builtins)
        self.response = response

    def take(self, names: list[str]) -> set[str]:
        """Take these names from the response instead of Python if it defines them; return the names taken."""
        taken = set()
        for name in set(names) - set(self):
            try:
                self[name] = self.response.decode(self.response.ask(op="name", name=name)["value"])
            except NameError:
                continue
            taken.add(name)
        return taken

    def give_back(self, names: set[str]) -> None:
        """Let these names be Python's again, because a builtin may decide an assertion of the next test."""
        for name in names:
            self.pop(name, None)

    def __missing__(self, name: str) -> Any:
        if hasattr(builtins, name) or (name.startswith("__") and name.endswith("__")):
            raise KeyError(name)
        if name in MODULES:
            try:
                value: Any = importlib.import_module(MODULES[name])
            except ModuleNotFoundError:
                raise MissingModuleError(f"the test needs {ALIASES.get(name, name)}") from None
            self[name] = value
            return value
        return self.response.decode(self.response.ask(op="name", name=name)["value"])


class _Classes(dict[str, Any]):
    """The classes of the tests by name, as currently defined."""

    def __init__(self, names: dict[str, Any], classes: list[str]) -> None:
        super().__init__()
        self._names, self._classes = names, frozenset(classes)

    def get(self, name: Any, default: Any = None) -> Any:
        """Return a class, or the default."""
        return dict.get(self._names, name, default) if name in self._classes else default

    __getitem__ = get


def _is_unchanging(value: Any) -> bool:
    if isinstance(value, tuple | frozenset):
        return all(map(_is_unchanging, value))
    return type(value) in _UNCHANGING


def _has_numpy(answer: dict[str, Any]) -> bool:
    return any(node[0] in ("array", "scalar", "objects") for node in answer["value"]["nodes"])


def _is_harmless(function: Any) -> bool:
    """Return True if a response may call this function here: it neither reads files nor runs code."""
    if isinstance(function, types.BuiltinFunctionType):
        return function.__module__ != "builtins"
    return isinstance(function, types.FunctionType)


def _refuse(request: dict[str, Any]) -> Any:
    raise TypeError("nothing can be requested here")


def _describe_error(error: BaseException) -> str:
    text = "" if isinstance(error, Remote) else str(error)
    return f"{type(error).__name__}: {text}"[:300] if text else type(error).__name__
