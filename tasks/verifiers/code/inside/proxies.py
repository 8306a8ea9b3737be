"""Defines classes that represent exceptions of the other process, so that `except` means the same in both.

Each exception class in the other process, including Python's own, has a stand-in class here. An exception that is
raised there is raised here as an instance of its stand-in, and no other object is. So `except ErrorOfTheResponse` in a
test catches exceptions that the response raised. It never catches a failed assertion of the test, even if the response
has bound the name to `AssertionError`.
"""

from __future__ import annotations

import builtins
from typing import Any

RAISED_THERE = "raised in the other process"
"""Note on exceptions of the other process, which distinguishes them from exceptions of this process."""

MAX_TEXT = 500
"""Maximum length of the text of an exception that is sent, in characters."""


class StandIn(type):
    """The metaclass of stand-ins; their calls, attributes and `issubclass` are answered by the other process."""

    _peer: Any
    _number: int

    def __call__(cls, *arguments: Any, **keywords: Any) -> Any:
        return cls._peer.remote(cls._number)(*arguments, **keywords)

    def __getattr__(cls, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(cls._peer.remote(cls._number), name)

    def __subclasscheck__(cls, other: type) -> bool:
        if type.__subclasscheck__(cls, other):  # Python calls this when one is raised
            return True
        if not isinstance(other, StandIn):
            return False
        return bool(cls._peer.remote(cls._number)._asks_subclass(other._peer.remote(other._number)))


class StandIns:
    """Describes exceptions for the other process, and creates the stand-ins of its exceptions."""

    def __init__(self, peer: Any) -> None:
        self._peer = peer
        self._classes: dict[int, Any] = {}
        self._combined: dict[tuple[int, ...], Any] = {}

    def describe(self, error: BaseException) -> dict[str, Any]:
        """Return the description of an exception of this process, for `make` in the other process."""
        try:
            arguments = self._peer.encode_all(error.args)
        except BaseException:
            arguments = self._peer.encode_all([])
        return {
            "classes": [
                self.describe_class(kind) for kind in type(error).__mro__ if kind not in (BaseException, object)
            ],
            "arguments": arguments,
            "text": _format_error(error),
            "number": self._peer.keep(error.with_traceback(None)),
        }

    def describe_class(self, kind: type) -> list[Any]:
        """Return a class's number, its name, and the name of the nearest built-in exception that it extends."""
        python = next(each.__name__ for each in kind.__mro__ if each.__module__ == "builtins")
        return [self._peer.keep(kind), str(kind.__name__), python]

    def make(self, description: dict[str, Any]) -> BaseException:
        """Return the exception that represents a described one of the other process."""
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
        """Return the class that represents a described one of the other process."""
        if number not in self._classes:
            base = getattr(builtins, str(python), None)
            if not (isinstance(base, type) and issubclass(base, Exception)):  # so that it cannot end this process
                base = Exception
            namespace = {
                "_peer": self._peer,
                "_number": int(number),
                "__str__": _read_message,
                "__getattr__": _fetch_attribute,
            }
            self._classes[number] = StandIn(str(name), (base,), namespace)
        return self._classes[number]


def _read_message(error: Any) -> str:
    return str(error._message)


def _fetch_attribute(error: Any, name: str) -> Any:
    if name.startswith("_"):
        raise AttributeError(name)
    return getattr(error._peer.remote(error._remote_number), name)


def _format_error(error: BaseException) -> str:
    try:
        return str(error)[:MAX_TEXT]
    except BaseException:
        return ""
