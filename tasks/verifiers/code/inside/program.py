"""The process that runs a response: as a program between standard input and output, or as functions to be called.

It holds the response and the arguments of its functions, never an expected result. Whatever the response does to this
process (frames, monkeypatching, forged messages) it can only return values, as it could anyway.
"""

from __future__ import annotations

import atexit
import builtins
import gc
import operator
import socket
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any, NoReturn

from tasks.verifiers.code.inside.wire import MAX_ITEMS, OPERATORS, Peer

_FLUSH_FAILED = 120
"""Python's exit status where only writing the last output failed."""


class _Exit:
    """The builtins `exit` and `quit`, which Python takes from its module `site`."""

    def __call__(self, code: object = None) -> NoReturn:
        with suppress(BaseException):
            sys.stdin.close()
        raise SystemExit(code)


def prepare() -> None:
    """Define the builtins that an interpreter without `site` lacks, and let integers of any length be printed.

    Python refuses to print more than 4,300 digits, lest a server be kept busy; here the limit of CPU time holds.
    """
    vars(builtins).update(exit=_Exit(), quit=_Exit())
    sys.set_int_max_str_digits(0)


def run(source: str) -> int:
    """Run a response as the main program, and return its exit status.

    As in an interpreter, its other threads, exit handlers and open files are finished before.
    """
    sys.argv = ["main.py"]
    status = 0
    try:
        names = _module("__main__").__dict__
        names["__file__"] = "main.py"
        exec(compile(source, "main.py", "exec"), names)  # noqa: S102 - this is the sandbox
    except SystemExit as error:
        status = _status(error.code)
    except BaseException as error:
        status = 1
        with suppress(BaseException):
            sys.excepthook(type(error), error, error.__traceback__)
    del names  # by which files that it left open would be held
    return _finish(status)


def _status(code: object) -> int:
    if code is None or isinstance(code, int):
        return (code or 0) & 0xFF
    with suppress(BaseException):
        print(code, file=sys.stderr)
    return 1


def _finish(status: int) -> int:
    """End as an interpreter does, in its order: other threads, exit handlers, standard output, then open files.

    Files that the program never closed write their buffers when they are collected.
    """
    if threading := sys.modules.get("threading"):  # who needs none is not charged for the import
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
    """Define the functions of a response, then let the other end call them.

    The first message is `{"source": ..., "imports": ...}`. Where the response cannot be loaded, its error answers
    every question.
    """
    response = _Response(connection)
    response.load()
    response.peer.serve()


class _Response:
    def __init__(self, connection: socket.socket) -> None:
        self.peer = Peer(connection, self._answer)
        self._names: dict[str, Any] = {}
        self._failure: BaseException | None = None

    def load(self) -> None:
        """Read the first message, and run the response's source; an exception is recorded as the answer to every
        request.
        """
        message = self.peer.receive()
        self._names = _module("solution").__dict__
        try:
            exec(message["imports"], self._names)  # noqa: S102 - this is the sandbox
            exec(compile(message["source"], "solution.py", "exec"), self._names)  # noqa: S102
        except BaseException as error:
            self._failure = error

    def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._failure is not None:
            raise self._failure
        if request["op"] == "name":
            if request["name"] not in self._names:
                raise NameError(f"the response defines no {request['name']!r}")
            return self._value(self._names[request["name"]])
        target = self.peer.object_at(request["of"])
        match request["op"]:
            case "call":
                return self._call(target, request)
            case "get":
                return self._value(getattr(target, request["name"]))
            case "set":
                setattr(target, request["name"], self.peer.decode(request["to"]))
                return self._value(None)
            case "special":
                return self._value(self._special(target, request))
        raise ValueError(f"unknown request {request['op']!r}")

    def _call(self, target: Any, request: dict[str, Any]) -> dict[str, Any]:
        arguments = [self.peer.decode(argument) for argument in request["arguments"]]
        keywords = {name: self.peer.decode(value) for name, value in request["keywords"].items()}
        answer = self._value(target(*arguments, **keywords))
        changed = {}
        for position, (before, after) in enumerate(zip(request["arguments"], arguments, strict=True)):
            if isinstance(after, list | dict | set) and (now := self.peer.encode(after)) != before:
                changed[str(position)] = now
        return answer | {"changed": changed}

    def _special(self, target: Any, request: dict[str, Any]) -> Any:
        arguments = [self.peer.decode(argument) for argument in request["arguments"]]
        return _SPECIAL[request["name"]](target, *arguments)

    def _value(self, value: Any) -> dict[str, Any]:
        return {"value": self.peer.encode(value)}


def _items(target: Any) -> Any:
    return target if isinstance(target, Iterator) else list(islice(target, MAX_ITEMS))


_SPECIAL: dict[str, Callable[..., Any]] = {
    "iter": _items,
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


def _module(name: str) -> types.ModuleType:
    module = sys.modules[name] = types.ModuleType(name)
    return module
