"""The conversation between the process that holds the tests and the one that holds the response.

    tests                                  response
    f([1, 2])      ──{"ask": call}───►     runs f
    == [2, 4]      ◄──{"value": ...}──     its result
    compared in the tests' process, by its own `==`

Messages are lines of JSON over a socket pair. Data crosses as a copy (`values`). Anything else (an instance of a class
of the response, a function) stays in its process and crosses as a number; the other end then holds a `Remote` that asks
for it. So nothing that the response defined, an `__eq__` say, is ever run in the process of the tests.
"""

from __future__ import annotations

import collections
import json
import operator
import socket
import sys
import types
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from tasks.verifiers.code.inside import reader, values
from tasks.verifiers.code.inside.proxies import RAISED_THERE, StandIn, StandIns

MAX_LINE = 32 << 20
"""Longest message, in bytes; a longer one ends the conversation."""
MAX_ITEMS = 1 << 20
"""Items of an iterable of the response that are handed over as a list; further ones are left out."""


VALUE = "= "
"""Prefix of code that is an expression, whose value is asked for."""

_NAMES = {"__name__", "__qualname__"}
"""Attributes between double underscores that the other process is asked for; Python itself reads others."""


class WireError(Exception):
    """The other process is gone, or its message cannot be understood."""


class Peer:
    """One end of the conversation: it asks, and answers requests while it waits for an answer."""

    def __init__(self, connection: socket.socket, answer: Callable[[dict[str, Any]], Any]) -> None:
        """Create an end on a socket. `answer` takes a request; its result or its exception reaches the other end.

        Instances of `classes` cross as data, and are made from those of `named` here. `arrays`, `alive` and `known` are
        those of `values`.
        """
        self._stream = connection.makefile("rwb")
        self._answer = answer
        self._objects: list[Any] = []
        self._numbers: dict[int, int] = {}
        self._remotes: weakref.WeakValueDictionary[int, Remote] = weakref.WeakValueDictionary()
        self._stand_ins = StandIns(self)
        self.classes: Collection[str] = ()
        self.named: Mapping[str, Any] = {}
        self.arrays = True
        self.alive: list[Any] | None = None
        self.known: dict[Any, Any] = {}

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

    def encode(self, value: Any) -> Any:
        """Return `value` as JSON; what is no data is registered here, and its number crosses."""
        return self.encode_all([value])

    def encode_all(self, parts: Iterable[Any]) -> Any:
        """Return several values as JSON: an object that is in two of them arrives as one."""
        return values.encode(parts, self.classes, self._reference, self.alive)

    def _reference(self, value: Any) -> list[Any]:
        if isinstance(value, Remote | StandIn):
            return ["yours", value._number]
        if isinstance(value, BaseException):
            return ["error", self._stand_ins.describe(value)]
        if isinstance(value, type) and issubclass(value, BaseException):
            return ["class", self._stand_ins.describe_class(value)]
        return ["mine", self.keep(value)]

    def decode(self, message: Any) -> Any:
        """Return the Python value of what `encode` of the other end wrote."""
        (value,) = self.decode_all(message)
        return value

    def decode_all(self, message: Any) -> list[Any]:
        """Return the Python values of what `encode_all` of the other end wrote."""
        try:
            return reader.decode(message, self.named, self._referred, arrays=self.arrays, known=self.known)
        except ValueError as error:
            raise WireError(f"a message that cannot be understood: {error}") from error

    def _referred(self, node: list[Any]) -> Any:
        match node:
            case ["mine", int(number)]:
                return self.remote(number)
            case ["yours", int(number)]:
                return self.object_at(number)
            case ["error", description]:
                return self._made(description)
            case ["class", [number, name, python]]:
                return self._stand_ins.make_class(number, name, python)
        raise ValueError("a value of no known kind")

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
        asked = {"of": self._number, "name": name, "arguments": self._peer.encode_all(arguments)}
        return self._peer.decode(self._peer.ask(op="special", **asked)["value"])

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
    """Call an object of the other process; what it changed in its arguments is changed here too."""
    given = [*arguments, *keywords.values()]
    answer = peer.ask(op="call", of=number, arguments=peer.encode_all(given), keywords=[*keywords])
    return taken_over(peer, given, answer)


def taken_over(peer: Peer, given: list[Any], answer: Mapping[str, Any]) -> Any:
    """Return a result, after what was given is changed as it was there; where it is one of them, it is so here."""
    result, *theirs = peer.decode_all(answer["value"])
    if not theirs:
        return result
    if len(theirs) != len(given):
        raise WireError("an answer about other arguments")
    for one, other in zip(given, theirs, strict=True):
        _change(one, other, peer.classes)
    return next((one for one, other in zip(given, theirs, strict=True) if other is result and _can_change(one)), result)


def _can_change(value: Any) -> bool:
    return isinstance(value, list | dict | set | bytearray | collections.deque) or hasattr(value, "__dict__")


def _change(ours: Any, theirs: Any, named: Collection[str]) -> None:
    if type(ours) is not type(theirs) or ours is theirs:
        return
    if isinstance(ours, list | bytearray):
        ours[:] = theirs
    elif isinstance(ours, dict | set):
        ours.clear()
        ours.update(theirs)
    elif isinstance(ours, collections.deque):
        ours.clear()
        ours.extend(theirs)
    elif type(ours).__module__ == "numpy":
        if getattr(ours, "shape", ()) == getattr(theirs, "shape", None) != ():
            ours[...] = theirs
    elif hasattr(ours, "__dict__") and (type(ours).__name__ in named or isinstance(ours, types.SimpleNamespace)):
        vars(ours).clear()
        vars(ours).update(vars(theirs))
