"""How the process that holds the tests talks to the one that holds the response: JSON lines over a socket pair.

What is data crosses as a copy. What is not (an instance of a class of the response, a generator) stays where it is and
crosses as a number; the other end then holds a `Remote` that asks for it. So nothing that the response defined, an
`__eq__` say, is ever run where the tests are.

JSON values stand for themselves, but for integers of more than 64 bits and for what JSON lacks, which are objects
`{"t": kind, "v": ...}`. Subclasses cross as the type that they extend.
"""

from __future__ import annotations

import builtins
import collections
import datetime
import decimal
import fractions
import json
import socket
import types
from collections.abc import Callable, Iterable, Mapping
from typing import Any

MAX_LINE = 8 << 20
"""Bytes of one message; what is longer ends the conversation."""

MAX_DEPTH = 100
MAX_ITEMS = 1 << 20


class WireError(Exception):
    """The other end is gone, or what it says cannot be understood."""


RAISED_THERE = "raised at the other end"
"""A note on exceptions that came over the wire, which tells them from our own."""


class Peer:
    """One end of the conversation: asks, and answers what it is asked while it waits."""

    def __init__(self, connection: socket.socket, answer: Callable[[dict[str, Any]], Any]) -> None:
        """`answer` takes a request and returns a value or raises; both reach the other end."""
        self._stream = connection.makefile("rwb")
        self._answer = answer
        self._kept: list[Any] = []

    def ask(self, **request: Any) -> Any:
        """The value that the other end gives; raises what it raised, as the built-in exception of that name."""
        self.send({"ask": request})
        while True:
            message = self.receive()
            if "ask" in message:
                self.reply(message["ask"])
            elif "raised" in message:
                error = _exception(message["raised"], message.get("text", ""))
                error.add_note(RAISED_THERE)
                raise error
            elif "value" in message:
                return message
            else:
                raise WireError("a message of no known kind")

    def serve(self) -> None:
        """Answer until the other end is gone."""
        while True:
            self.reply(self.receive()["ask"])

    def reply(self, request: dict[str, Any]) -> None:
        """Answer one request."""
        try:
            answer = self._answer(request)
        except WireError:
            raise
        except BaseException as error:
            answer = {"raised": _exception_names(error), "text": _text_of(error)}
        self.send(answer)

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        line = json.dumps(message).encode()
        if len(line) > MAX_LINE:
            line = json.dumps({"raised": ["OverflowError"], "text": "a value too large to hand over"}).encode()
        try:
            self._stream.write(line + b"\n")
            self._stream.flush()
        except OSError as error:
            raise WireError("the other end is gone") from error

    def receive(self) -> dict[str, Any]:
        """Read one message; raises `WireError` where there is none that can be understood."""
        try:
            line = self._stream.readline(MAX_LINE + 2)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError) as error:
            raise WireError("a message that is no JSON") from error
        if not isinstance(message, dict):
            raise WireError("the other end is gone")
        return message

    def keep(self, value: Any) -> int:
        """The number under which `value` stays here for the other end to ask for."""
        self._kept.append(value)
        return len(self._kept) - 1

    def kept(self, number: Any) -> Any:
        """What `keep` was given."""
        return self._kept[number]

    def encode(self, value: Any, depth: int = 0) -> Any:
        """`value` as JSON; what is no data is kept here."""
        if depth > MAX_DEPTH:
            raise RecursionError("a value nested too deeply to hand over")
        for kind, pack in _PACK:
            if isinstance(value, kind):
                return pack(value, lambda inner: self.encode(inner, depth + 1))
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            return self.encode(value.tolist(), depth + 1)
        if isinstance(value, type | types.BuiltinFunctionType) and value in _BUILTIN_NAMES:
            return {"t": "builtin", "v": _BUILTIN_NAMES[value]}
        if isinstance(value, Remote):
            return {"t": "yours", "v": value._number}
        return {"t": "mine", "v": self.keep(value)}

    def decode(self, value: Any) -> Any:
        """The inverse of `encode` at the other end."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind, inner = value.get("t"), value.get("v")
        if kind == "mine" and isinstance(inner, int):
            return Remote(self, inner)
        if kind == "yours":
            return self.kept(inner)
        if kind not in _UNPACK:
            raise WireError("a value of no known kind")
        return _UNPACK[kind](inner, self.decode)


class Remote:
    """Something that lives at the other end. Equal to nothing but itself; its parts come as data, or remote too."""

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return call(self._peer, self._number, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._peer.decode(self._peer.ask(op="get", of=self._number, name=name)["value"])

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask(op="set", of=self._number, name=name, to=self._peer.encode(value))

    def _special(self, name: str, *arguments: Any) -> Any:
        encoded = [self._peer.encode(argument) for argument in arguments]
        return self._peer.decode(self._peer.ask(op="special", of=self._number, name=name, arguments=encoded)["value"])

    def __iter__(self) -> Any:
        items = self._special("iter")
        return items if isinstance(items, Remote) else iter(items)

    def __next__(self) -> Any:
        return self._special("next")

    def __len__(self) -> int:
        return int(self._special("len"))

    def __bool__(self) -> bool:
        return True

    def __getitem__(self, key: Any) -> Any:
        return self._special("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._special("setitem", key, value)

    def __str__(self) -> str:
        return str(self._special("str"))

    def __repr__(self) -> str:
        return str(self._special("repr"))


def call(peer: Peer, number: int, arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
    """Call what is at the other end; lists, dicts and sets that it changed in place are changed here too."""
    arguments = list(arguments)
    answer = peer.ask(
        op="call",
        of=number,
        arguments=[peer.encode(argument) for argument in arguments],
        keywords={name: peer.encode(value) for name, value in keywords.items()},
    )
    for position, changed in answer.get("changed", {}).items():
        _change(arguments[int(position)], peer.decode(changed))
    return peer.decode(answer["value"])


def _change(ours: Any, theirs: Any) -> None:
    if type(ours) is not type(theirs):
        return
    if isinstance(ours, list):
        ours[:] = theirs
    elif isinstance(ours, dict | set):
        ours.clear()
        ours.update(theirs)


def _exception_names(error: BaseException) -> list[str]:
    return [kind.__name__ for kind in type(error).__mro__ if kind.__module__ == "builtins" and kind is not object]


def _exception(names: Any, text: Any) -> BaseException:
    """The nearest built-in exception, without the power to end this process."""
    for name in names if isinstance(names, list) else []:
        kind = getattr(builtins, str(name), None)
        if isinstance(kind, type) and issubclass(kind, Exception):
            try:
                return kind(str(text))
            except TypeError:  # such as UnicodeDecodeError, which wants five arguments
                continue
    return RuntimeError(f"{names}: {text}")


def _text_of(error: BaseException) -> str:
    try:
        return str(error)[:500]
    except BaseException:
        return ""


_Pack = Callable[[Any, Callable[[Any], Any]], Any]


def _tagged(kind: str, unpacked: Callable[[Any], Any] = lambda value: value) -> _Pack:
    return lambda value, _: {"t": kind, "v": unpacked(value)}


def _items(kind: str) -> _Pack:
    return lambda value, encode: {"t": kind, "v": [encode(item) for item in value]}


def _moment(kind: str) -> _Pack:
    """Dates and times by their ISO form; those with a zone keep its offset, which is what they are compared by."""
    return lambda value, _: {"t": kind, "v": value.isoformat()}


def _integer(value: int, _: Callable[[Any], Any]) -> Any:
    value = int.__index__(value)
    return value if -(2**63) <= value < 2**63 else {"t": "int", "v": hex(value)}


_BUILTINS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(abs, all, any, bin, chr, divmod, hex, len, max, min, oct, ord, pow, round, sorted, sum),
        *(bool, bytearray, bytes, complex, dict, float, frozenset, int, list, range, set, str, tuple),
    )
}
"""Types of data and functions without effects: each end uses its own."""

_BUILTIN_NAMES = {kind: name for name, kind in _BUILTINS.items()}

_PACK: tuple[tuple[Any, _Pack], ...] = (
    (bool | None, lambda value, _: value),
    (int, _integer),
    (float, lambda value, _: float.__float__(value)),
    (str, lambda value, _: str.__str__(value)),
    (list, lambda value, encode: [encode(item) for item in value]),
    (tuple, _items("tuple")),
    (dict, lambda value, encode: {"t": "dict", "v": [[encode(key), encode(item)] for key, item in value.items()]}),
    (set, _items("set")),
    (frozenset, _items("frozenset")),
    (collections.deque, _items("deque")),
    (bytes, _tagged("bytes", bytes.hex)),
    (bytearray, _tagged("bytearray", bytearray.hex)),
    (complex, _tagged("complex", lambda value: [value.real, value.imag])),
    (decimal.Decimal, _tagged("decimal", str)),
    (fractions.Fraction, _tagged("fraction", lambda value: [hex(value.numerator), hex(value.denominator)])),
    (range, _tagged("range", lambda value: [value.start, value.stop, value.step])),
    (datetime.datetime, _moment("datetime")),
    (datetime.date, _moment("date")),
    (datetime.time, _moment("time")),
    (datetime.timedelta, _tagged("timedelta", lambda value: [value.days, value.seconds, value.microseconds])),
)

_UNPACK: dict[Any, Callable[[Any, Callable[[Any], Any]], Any]] = {
    "int": lambda value, _: int(value, 16),
    "tuple": lambda value, decode: tuple(decode(item) for item in value),
    "dict": lambda value, decode: {decode(key): decode(item) for key, item in value},
    "set": lambda value, decode: {decode(item) for item in value},
    "frozenset": lambda value, decode: frozenset(decode(item) for item in value),
    "deque": lambda value, decode: collections.deque(decode(item) for item in value),
    "bytes": lambda value, _: bytes.fromhex(value),
    "bytearray": lambda value, _: bytearray.fromhex(value),
    "complex": lambda value, _: complex(*value),
    "decimal": lambda value, _: decimal.Decimal(value),
    "fraction": lambda value, _: fractions.Fraction(*(int(part, 16) for part in value)),
    "range": lambda value, _: range(*value),
    "datetime": lambda value, _: datetime.datetime.fromisoformat(value),
    "date": lambda value, _: datetime.date.fromisoformat(value),
    "time": lambda value, _: datetime.time.fromisoformat(value),
    "timedelta": lambda value, _: datetime.timedelta(*value),
    "builtin": lambda value, _: _BUILTINS[value],
}
