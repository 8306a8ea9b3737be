"""The protocol between the process that holds the tests and the one that holds the response.

    tests                                  response
    f([1, 2])      ──{"ask": call}───►     runs f
    == [2, 4]      ◄──{"value": ...}──     its result
    compared in the tests' process, by its own `==`

Messages are lines of JSON over a socket pair. Data crosses as a copy. Anything else (an instance of a class of the
response, a generator) stays in its process and crosses as a number; the other end then holds a `Remote` that asks for
it. So nothing that the response defined, an `__eq__` say, is ever run in the process of the tests.

JSON values stand for themselves, but for integers of more than 64 bits and for what JSON lacks, which are objects
`{"t": kind, "v": ...}`. Subclasses cross as the type that they extend; a named tuple has its fields there too.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import json
import operator
import socket
import sys
import types
import weakref
from collections.abc import Callable, Iterable, Mapping
from functools import lru_cache
from typing import Any

from tasks.verifiers.code.inside.standins import RAISED_THERE, StandIn, StandIns

MAX_LINE = 8 << 20
"""Longest message, in bytes; a longer one ends the conversation."""

MAX_DEPTH = 100
"""Deepest nesting of a value that crosses."""
MAX_ITEMS = 1 << 20
"""Items of an iterable of the response that are handed over as a list; further ones are left out."""


_NAMES = {"__name__", "__qualname__"}
"""Attributes between double underscores that the other process is asked for; Python itself reads others."""


class WireError(Exception):
    """The other process is gone, or its message cannot be understood."""


class Peer:
    """One end of the conversation: it asks, and answers requests while it waits for an answer."""

    def __init__(self, connection: socket.socket, answer: Callable[[dict[str, Any]], Any]) -> None:
        """Create an end on a socket. `answer` takes a request; its result or its exception reaches the other end."""
        self._stream = connection.makefile("rwb")
        self._answer = answer
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._remotes: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._stand_ins = StandIns(self)

    def ask(self, **request: Any) -> Any:
        """Send a request and return the answer; an exception of the other end is raised here as its stand-in."""
        self.send({"ask": request})
        while True:
            message = self.receive()
            if "ask" in message:
                self.reply(message["ask"])
            elif "raised" in message:
                error = self._made(message["raised"])
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
            answer = {"raised": self._stand_ins.describe(error)}
        self.send(answer)

    def send(self, message: dict[str, Any]) -> None:
        """Write one message."""
        line = json.dumps(message).encode()
        if len(line) > MAX_LINE:
            error = OverflowError("a value too large to hand over")
            line = json.dumps({"raised": self._stand_ins.describe(error)}).encode()
        try:
            self._stream.write(line + b"\n")
            self._stream.flush()
        except OSError as error:
            raise WireError("the other end is gone") from error

    def receive(self) -> dict[str, Any]:
        """Read one message; raises `WireError` where there is none that can be understood."""
        digits = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)  # larger ones cross as hexadecimal digits
        try:
            line = self._stream.readline(MAX_LINE + 2)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError) as error:
            raise WireError("a message that is no JSON") from error
        finally:
            sys.set_int_max_str_digits(digits)
        if not isinstance(message, dict):
            raise WireError("the other end is gone")
        return message

    def keep(self, value: Any) -> int:
        """Register `value`, which stays here, and return its number for the other end: one for each object."""
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def object_at(self, number: Any) -> Any:
        """Return the object that `keep` registered under this number."""
        return self._objects[number]

    def remote(self, number: int) -> Remote:
        """Return the reference to the other end's object of this number: the same one as long as it is in use here."""
        remote = self._remotes.get(number)
        if remote is None:
            remote = self._remotes[number] = Remote(self, number)
        return remote

    def encode(self, value: Any, depth: int = 0) -> Any:
        """Return `value` as JSON; what is no data is registered here, and its number crosses."""
        if depth > MAX_DEPTH:
            raise RecursionError("a value nested too deeply to hand over")
        for kind, pack in _PACK:
            if isinstance(value, kind):
                return pack(value, lambda inner: self.encode(inner, depth + 1))
        if type(value).__module__.partition(".")[0] == "numpy" and hasattr(value, "tolist"):
            return self.encode(value.tolist(), depth + 1)
        if isinstance(value, type | types.BuiltinFunctionType) and value in _BUILTIN_NAMES:
            return {"t": "builtin", "v": _BUILTIN_NAMES[value]}
        if isinstance(value, Remote | StandIn):
            return {"t": "yours", "v": value._number}
        return self._reference(value)

    def _reference(self, value: Any) -> dict[str, Any]:
        if isinstance(value, BaseException):
            return {"t": "error", "v": self._stand_ins.describe(value)}
        if isinstance(value, type) and issubclass(value, BaseException):
            return {"t": "class", "v": self._stand_ins.describe_class(value)}
        return {"t": "mine", "v": self.keep(value)}

    def decode(self, value: Any) -> Any:
        """Return the Python value of what `encode` of the other end wrote."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        kind, inner = value.get("t"), value.get("v")
        if kind == "mine" and isinstance(inner, int):
            return self.remote(inner)
        if kind == "yours":
            return self.object_at(inner)
        if kind in ("error", "class"):
            return self._made(inner) if kind == "error" else self._stand_ins.make_class(*(inner or ()))
        if kind not in _UNPACK:
            raise WireError("a value of no known kind")
        return _UNPACK[kind](inner, self.decode)

    def _made(self, description: Any) -> BaseException:
        try:
            return self._stand_ins.make(description)
        except (TypeError, ValueError, LookupError, AttributeError) as error:
            raise WireError("an exception of no known kind") from error


class Remote:
    """A reference to an object of the other process: one for each object, equal to nothing but itself.

    Its parts come as data, or as references too. Operators work between two references; a value of this process is
    never handed to an operator of the other, as it might be what an answer is compared with.
    """

    def __init__(self, peer: Peer, number: int) -> None:
        object.__setattr__(self, "_peer", peer)
        object.__setattr__(self, "_number", number)

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return call(self._peer, self._number, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") and name not in _NAMES:
            raise AttributeError(name)
        return self._peer.decode(self._peer.ask(op="get", of=self._number, name=name)["value"])

    def __setattr__(self, name: str, value: Any) -> None:
        self._peer.ask(op="set", of=self._number, name=name, to=self._peer.encode(value))

    def __delattr__(self, name: str) -> None:
        self._special("delattr", name)

    def _special(self, name: str, *arguments: Any) -> Any:
        encoded = [self._peer.encode(argument) for argument in arguments]
        return self._peer.decode(self._peer.ask(op="special", of=self._number, name=name, arguments=encoded)["value"])

    def _asks_subclass(self, other: Any) -> bool:
        return self._special("subclass", other) is True

    def __instancecheck__(self, instance: Any) -> bool:
        return isinstance(instance, Remote) and self._special("instance", instance) is True

    def __subclasscheck__(self, other: Any) -> bool:
        return isinstance(other, Remote | StandIn) and self._asks_subclass(other)

    def __iter__(self) -> Any:
        items = self._special("iter")
        return items if isinstance(items, Remote) else iter(items)

    def __next__(self) -> Any:
        return self._special("next")

    def __len__(self) -> int:
        return int(self._special("len"))

    def __bool__(self) -> bool:
        return self._special("bool") is not False

    def __getitem__(self, key: Any) -> Any:
        return self._special("getitem", key)

    def __setitem__(self, key: Any, value: Any) -> None:
        self._special("setitem", key, value)

    def __delitem__(self, key: Any) -> None:
        self._special("delitem", key)

    def __str__(self) -> str:
        return str(self._special("str"))

    def __repr__(self) -> str:
        return str(self._special("repr"))


OPERATORS = {
    f"__{name.strip('_')}__": getattr(operator, name)
    for name in (
        *("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "matmul", "and_", "or_", "xor", "lshift", "rshift"),
        *("lt", "le", "gt", "ge", "neg", "pos", "invert", "abs"),
    )
}
"""Operators that are carried out in the process of their operands; `==` is not, as it must be the tests' own."""


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Remote, *others: Any) -> Any:
        if not all(isinstance(other, Remote) for other in others):
            return NotImplemented
        return self._special(name, *others)

    return operate


for _name in OPERATORS:
    setattr(Remote, _name, _operator(_name))


def call(peer: Peer, number: int, arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
    """Call an object of the other process; lists, dicts and sets that it changed in place are changed here too."""
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


_Pack = Callable[[Any, Callable[[Any], Any]], Any]


def _tagged(kind: str, unpacked: Callable[[Any], Any] = lambda value: value) -> _Pack:
    return lambda value, _: {"t": kind, "v": unpacked(value)}


def _items(kind: str) -> _Pack:
    return lambda value, encode: {"t": kind, "v": [encode(item) for item in value]}


def _moment(kind: str) -> _Pack:
    """Pack dates and times by their ISO form; those with a zone have its offset, by which they are compared."""
    return lambda value, _: {"t": kind, "v": value.isoformat()}


def _integer(value: int, _: Callable[[Any], Any]) -> Any:
    value = int.__index__(value)
    return value if -(2**63) <= value < 2**63 else {"t": "int", "v": hex(value)}


def _tuple(value: tuple[Any, ...], encode: Callable[[Any], Any]) -> dict[str, Any]:
    items = [encode(item) for item in value]
    fields = getattr(type(value), "_fields", None)
    if isinstance(fields, tuple):
        return {"t": "namedtuple", "v": [type(value).__name__, [str(field) for field in fields], items]}
    return {"t": "tuple", "v": items}


@lru_cache(maxsize=256)
def _named_tuple_type(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)  # it refuses all that is no identifier


_BUILTINS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(abs, all, any, bin, chr, divmod, hex, len, max, min, oct, ord, pow, round, sorted, sum),
        *(bool, bytearray, bytes, complex, dict, float, frozenset, int, list, range, set, str, tuple),
    )
}
"""Types of data and functions without effects: each process uses its own."""

_BUILTIN_NAMES = {kind: name for name, kind in _BUILTINS.items()}

_PACK: tuple[tuple[Any, _Pack], ...] = (
    (bool | None, lambda value, _: value),
    (int, _integer),
    (float, lambda value, _: float.__float__(value)),
    (str, lambda value, _: str.__str__(value)),
    (list, lambda value, encode: [encode(item) for item in value]),
    (tuple, _tuple),
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
    "namedtuple": lambda value, decode: _named_tuple_type(value[0], tuple(value[1]))(*map(decode, value[2])),
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
