"""Classes of exceptions that stand for those of the other process, so that `except` means the same in both.

Each class of an exception in the other process, Python's own among them, has a stand-in here. An exception that is
raised there is raised here as an instance of the stand-ins of its classes; nothing else ever is. So `except` by a name
that the response defined catches what the response raised, and no failed assertion, whatever it bound to that name.
"""

from __future__ import annotations

import builtins
from typing import Any

RAISED_THERE = "raised at the other end"
"""Note on exceptions that came over the wire, which sets them apart from this process's own."""

MAX_TEXT = 500
"""Longest text of an exception that crosses the wire, in characters."""


class StandIn(type):
    """The class of a stand-in class; its calls, attributes and `issubclass` are answered by the other process."""

    _peer: Any
    _number: int

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls._peer.remote(cls._number)(*arguments, **keywords)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._peer.remote(cls._number), name)

    def __subclasscheck__(cls, other: type) -> bool:
        if type.__subclasscheck__(cls, other):  # Python asks this itself when one is raised
            return True
        if not isinstance(other, StandIn):
            return False
        return bool(cls._peer.remote(cls._number)._asks_subclass(other._peer.remote(other._number)))


class StandIns:
    """Proxies of the program's objects, which the tests use; their operations run in the program's process."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._classes: dict[int, Any] = {}
        self._combined: dict[tuple[int, ...], Any] = {}

    def describe(self, error: BaseException) -> dict[str, Any]:
        """Return the description of an exception of this process, for `make` in the other one."""
        try:
            arguments = self._peer.encode_all(error.args)
        except BaseException:
            arguments = self._peer.encode_all([])
        return {
            "classes": [
                self.describe_class(kind) for kind in type(error).__mro__ if kind not in (BaseException, object)
            ],
            "arguments": arguments,
            "text": _text_of(error),
            "number": self._peer.keep(error.with_traceback(None)),
        }

    def describe_class(self, kind: type) -> list[Any]:
        """Return a class's number, its own name, and the name of the nearest of Python's exceptions that it extends."""
        python = next(each.__name__ for each in kind.__mro__ if each.__module__ == "builtins")
        return [self._peer.keep(kind), str(kind.__name__), python]

    def make(self, description: dict[str, Any]) -> BaseException:
        """Return the exception that stands for a described one of the other process."""
        parts = [self.make_class(*each) for each in description["classes"]]
        key = tuple(part._number for part in parts)
        if key not in self._combined:
            self._combined[key] = StandIn(parts[0].__name__, tuple(parts), {"_peer": self._peer, "_number": key[0]})
        kind = self._combined[key]
        error: Any = kind.__new__(kind)
        error.args = tuple(self._peer.decode_all(description["arguments"]))
        error._message, error._remote_number = str(description["text"]), int(description["number"])
        return error

    def make_class(self, number: Any, name: Any, python: Any) -> Any:
        """Return the class that stands for a described one of the other process."""
        if number not in self._classes:
            base = getattr(builtins, str(python), None)
            if not (isinstance(base, type) and issubclass(base, Exception)):  # without the power to end this process
                base = Exception
            namespace = {"_peer": self._peer, "_number": int(number), "__str__": _text, "__getattr__": _attribute}
            self._classes[number] = StandIn(str(name), (base,), namespace)
        return self._classes[number]


def _text(error: Any) -> str:
    return str(error._message)


def _attribute(error: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(error._peer.remote(error._remote_number), name)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except BaseException:
        return ""
