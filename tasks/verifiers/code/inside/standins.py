"""Classes of exceptions for those of the other end, so that `except` there and here means the same.

Each class of an exception over there, Python's own among them, has one of its own here. What is raised over there is
raised here as an instance of those that stand for its classes; nothing else ever is. So `except` by a name that the
response defined catches what the response raised, and no failed assertion, whatever it bound to that name.
"""

from __future__ import annotations

import builtins
from typing import Any

RAISED_THERE = "raised at the other end"
"""A note on exceptions that came over the wire, which tells them from our own."""

MAX_TEXT = 500


class StandIn(type):
    """The class of such a class: what is asked of it is asked at the other end."""

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
    """Those of one conversation."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._classes: dict[int, Any] = {}
        self._combined: dict[tuple[int, ...], Any] = {}

    def describe(self, error: BaseException) -> dict[str, Any]:
        """An exception of this end for the other one."""
        try:
            arguments = [self._peer.encode(argument) for argument in error.args]
        except BaseException:
            arguments = []
        return {
            "classes": [
                self.describe_class(kind) for kind in type(error).__mro__ if kind not in (BaseException, object)
            ],
            "arguments": arguments,
            "text": _text_of(error),
            "number": self._peer.keep(error.with_traceback(None)),
        }

    def describe_class(self, kind: type) -> list[Any]:
        """Its number, its own name, and that of the nearest of Python's exceptions."""
        python = next(each.__name__ for each in kind.__mro__ if each.__module__ == "builtins")
        return [self._peer.keep(kind), str(kind.__name__), python]

    def make(self, said: dict[str, Any]) -> BaseException:
        """The exception here for one of the other end."""
        parts = [self.make_class(*each) for each in said["classes"]]
        key = tuple(part._number for part in parts)
        if key not in self._combined:
            self._combined[key] = StandIn(parts[0].__name__, tuple(parts), {"_peer": self._peer, "_number": key[0]})
        kind = self._combined[key]
        error: Any = kind.__new__(kind)
        error.args = tuple(self._peer.decode(argument) for argument in said["arguments"])
        error._said, error._there = str(said["text"]), int(said["number"])
        return error

    def make_class(self, number: Any, name: Any, python: Any) -> Any:
        """The class here for one of the other end."""
        if number not in self._classes:
            base = getattr(builtins, str(python), None)
            if not (isinstance(base, type) and issubclass(base, Exception)):  # without the power to end this process
                base = Exception
            namespace = {"_peer": self._peer, "_number": int(number), "__str__": _text, "__getattr__": _attribute}
            self._classes[number] = StandIn(str(name), (base,), namespace)
        return self._classes[number]


def _text(error: Any) -> str:
    return str(error._said)


def _attribute(error: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(error._peer.remote(error._there), name)


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except BaseException:
        return ""
