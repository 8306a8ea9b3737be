"""Runs a response in its own process: as a program with standard input and output, or as functions to be called.

The process contains the response and the arguments of its functions, never an expected result. Whatever the response
does to this process (frames, monkeypatching, forged messages), it can only return values, as it could anyway.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import importlib
import operator
import socket
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from tasks.verifiers.code.inside.modules import MODULES, MainModule
from tasks.verifiers.code.inside.wire import MAX_ITEMS, OPERATORS, VALUE, Peer

_FLUSH_FAILED = 120
"""Python's exit status if only writing the last output failed."""


class _Exit:
    """The builtins `exit` and `quit`, which Python's module `site` defines."""

    def __call__(self, code: object = None) -> NoReturn:
        with suppress(BaseException):
            sys.stdin.close()
        raise SystemExit(code)


def prepare() -> None:
    """Define the builtins that an interpreter without `site` lacks, and allow printing integers of any length.

    Python refuses to print more than 4,300 digits, to protect servers; here the CPU time limit applies.
    """
    vars(builtins).update(exit=_Exit(), quit=_Exit())
    sys.set_int_max_str_digits(0)


def run(source: str) -> int:
    """Run a response as the main program, and return its exit status.

    Its other threads, exit handlers and open files are finished before, as in an interpreter.
    """
    sys.argv = ["main.py"]
    status = 0
    try:
        names = _add_module("__main__").__dict__
        names["__file__"] = "main.py"
        exec(compile(source, "main.py", "exec", dont_inherit=True), names)  # noqa: S102 - this is the sandbox
    except SystemExit as error:
        status = _convert_status(error.code)
    except BaseException as error:
        status = 1
        with suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
    del names  # which would keep files open
    return _finish(status)


def _convert_status(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    with suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _finish(status: int) -> int:
    """End as an interpreter does, in its order: other threads, exit handlers, standard output, then open files.

    Files that the program did not close write their buffers when they are garbage collected.
    """
    if threading := sys.modules.get("threading"):  # programs without threads are not charged for the import
        with suppress(BaseException):
            threading._shutdown()
    with suppress(BaseException):
        atexit._run_exitfuncs()
    flushed = _flush("stdout")
    sys.modules.pop("__main__", None)
    gc.collect()
    return status if flushed & _flush("__stdout__") else status or _FLUSH_FAILED


def _flush(name: str) -> bool:
    stream = getattr(sys, name, None)
    try:
        if stream is not None and not getattr(stream, "closed", False):
            stream.flush()
    except BaseException:
        return False
    return True


def serve(connection: socket.socket) -> None:
    """Define the functions of a response, then let the tests' process call them.

    The first message is `{"source", "given", "classes"}`: the response, code that runs before it, and the names of the
    classes of the tests. If the response cannot be loaded, its error is the reply to every request.
    """
    response = _Response(connection)
    response.load()
    response.peer.serve()


class _Tests(dict[str, Any]):
    """The names of the test code that runs here; names that it does not define are looked up in the response."""

    def __init__(self, response: dict[str, Any]) -> None:
        super().__init__(__name__="__main__", __builtins__=builtins)
        self._response = response

    def __missing__(self, name: str) -> Any:
        if name in self._response:
            return self._response[name]
        if hasattr(builtins, name) or (name.startswith("__") and name.endswith("__")):
            raise KeyError(name)
        if (module := MODULES.get(name)) is None:
            raise NameError(f"the response defines no {name!r}")
        return importlib.import_module(module)


class _Response:
    def __init__(self, connection: socket.socket) -> None:
        self.peer = Peer(connection, self._answer)
        self._names: dict[str, Any] = {}
        self._failure: BaseException | None = None

    def load(self) -> None:
        """Read the first message, and run the response's source; an exception is recorded as the reply to every
        request.
        """
        message = self.peer.receive()
        self._names = _add_module("solution").__dict__
        self._tests = _Tests(self._names)
        sys.modules["__main__"] = MainModule(self._tests)
        self.peer.named, self.peer.classes = self._tests, message["classes"]
        try:
            for name, source in (("given.py", message["given"]), ("solution.py", message["source"])):
                exec(compile(source, name, "exec", dont_inherit=True), self._names)  # noqa: S102 - this is the sandbox
        except BaseException as error:
            self._failure = error

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        if request["op"] == "run":
            if request["fresh"]:
                self.peer.alive = []
            return self._run(request["code"], request["names"], self.peer.decode_all(request["given"]))
        if request["op"] == "name":
            return self._encode_value(self._tests[request["name"]])
        target = self.peer.find_object(request["of"])
        match request["op"]:
            case "call":
                given = self.peer.decode_all(request["arguments"])
                places = len(given) - len(request["keywords"])
                return self._called(target, given, dict(zip(request["keywords"], given[places:], strict=True)))
            case "get":
                return self._encode_value(getattr(target, request["name"]))
            case "set":
                setattr(target, request["name"], self.peer.decode(request["to"]))
                return self._encode_value(None)
            case "special":
                return self._encode_value(
                    _SPECIAL[request["name"]](target, *self.peer.decode_all(request["arguments"]))
                )
        raise ValueError(f"unknown request {request['op']!r}")

    def _run(self, code: str, names: list[str], given: list[Any]) -> dict[str, Any]:
        """Run test code: a statement, an expression, or either as a function of the given values."""
        is_value = code.startswith(VALUE)
        compiled = compile(code.removeprefix(VALUE), "test", "eval" if is_value else "exec", dont_inherit=True)
        result = eval(compiled, self._tests)  # noqa: S307 - this is the sandbox
        if names:
            return self._called(
                result if is_value else self._tests["__given__"], given, dict(zip(names, given, strict=True))
            )
        return self._encode_value(result)

    def _called(self, target: Any, given: list[Any], keywords: dict[str, Any]) -> dict[str, Any]:
        """Call an object, and return its result with its arguments, which it may have changed."""
        result = target(*given[: len(given) - len(keywords)], **keywords)
        return {"value": self.peer.encode_all([result, *given] if any(map(_can_change, given)) else [result])}

    def _encode_value(self, value: Any) -> dict[str, Any]:
        return {"value": self.peer.encode(value)}


def _can_change(value: Any) -> bool:
    return value is not None and type(value) not in (bool, int, float, str, bytes)


def _list_items(target: Any) -> Any:
    return target if isinstance(target, Iterator) else list(islice(target, MAX_ITEMS))


_SPECIAL: dict[str, Callable[..., Any]] = {
    "iter": _list_items,
    "next": next,
    "len": len,
    "getitem": operator.getitem,
    "setitem": operator.setitem,
    "delitem": operator.delitem,
    "delattr": delattr,
    "bool": bool,
    "instance": lambda kind, value: isinstance(value, kind),
    "subclass": lambda kind, other: issubclass(other, kind),
    **OPERATORS,
    "str": str,
    "repr": repr,
}


def _add_module(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    return module
