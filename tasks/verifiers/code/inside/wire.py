"""Implements the communication between the process of the tests and the process of the response.

    tests                                  response
    f([1, 2])      ──{"ask": call}───►     runs f
    == [2, 4]      ◄──{"value": ...}──     its result
    compared in the tests' process, by its own `==`

Messages are lines of JSON over a socket pair. Data is sent as a copy (`values`). Anything else (an instance of a class
of the response, a function) stays in its process and is sent as a number; the other process then has a `Remote` that
sends requests to it. So nothing that the response defined, such as an `__eq__`, ever runs in the process of the tests.
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
"""Maximum length of a message in bytes; a longer one ends the communication."""
MAX_ITEMS = 1 << 20
"""Maximum number of items of an iterable of the response that are sent as a list; further ones are dropped."""


VALUE = "= "
"""Prefix of code that is an expression, whose value is requested."""

_NAMES = {"__name__", "__qualname__"}
"""Attributes between double underscores that are requested from the other process; Python itself reads others."""


class WireError(Exception):
    """The other process has ended, or its message is invalid."""


class Peer:
    """One side of the communication: it sends requests, and handles requests while it waits for a reply."""

    def __init__(self, connection: socket.socket, answer: Callable[[dict[str, Any]], Any]) -> None:
        """Create one side on a socket. `answer` handles a request; its result or exception is sent back.

        Instances of `classes` are sent as data, and are created here from the classes in `named`. `arrays`, `alive` and
        `known` are the arguments of `values` and `reader`.
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
        """Send a request and return the reply; an exception of the other process is raised here as its stand-in."""
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
        """Handle requests until the other process has ended."""
        while True:
            self.reply(self.receive()["ask"])

    def reply(self, request: dict[str, Any]) -> None:
        """Handle one request and send the reply."""
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
            error = OverflowError("a value too large to pass")
            line = json.dumps({"raised": self._stand_ins.describe(error)}).encode()
        try:
            self._stream.write(line + b"\n")
            self._stream.flush()
        except OSError as error:
            raise WireError("the other process has ended") from error

    def receive(self) -> dict[str, Any]:
        """Read one message; raises `WireError` if there is no valid one."""
        digits = sys.get_int_max_str_digits()
        sys.set_int_max_str_digits(sys.int_info.str_digits_check_threshold)  # larger ones are sent in hexadecimal
        try:
            line = self._stream.readline(MAX_LINE + 2)
            message = json.loads(line) if line.endswith(b"\n") else None
        except (OSError, ValueError, RecursionError) as error:
            raise WireError("a message that is not JSON") from error
        finally:
            sys.set_int_max_str_digits(digits)
        if not isinstance(message, dict):
            raise WireError("the other process has ended")
        return message

    def keep(self, value: Any) -> int:
        """Register `value`, which stays here, and return its number for the other process, unique for each object."""
        number = self._numbers.setdefault(id(value), len(self._objects))
        if number == len(self._objects):
            self._objects.append(value)
        return number

    def find_object(self, number: Any) -> Any:
        """Return the object that `keep` registered under this number."""
        return self._objects[number]

    def remote(self, number: int) -> Remote:
        """Return the reference to the other process's object of this number; the same one while it is in use here."""
        remote = self._remotes.get(number)
        if remote is None:
            remote = self._remotes[number] = Remote(self, number)
        return remote

    def encode(self, value: Any) -> Any:
        """Return `value` as JSON; an object that is not data is registered here, and its number is sent."""
        return self.encode_all([value])

    def encode_all(self, parts: Iterable[Any]) -> Any:
        """Return several values as JSON: an object that is in two of them is decoded as one."""
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
        """Return the Python value from the result of `encode` of the other process."""
        (value,) = self.decode_all(message)
        return value

    def decode_all(self, message: Any) -> list[Any]:
        """Return the Python values from the result of `encode_all` of the other process."""
        try:
            return reader.decode(message, self.named, self._decode_reference, arrays=self.arrays, known=self.known)
        except ValueError as error:
            raise WireError(f"a message that cannot be understood: {error}") from error

    def _decode_reference(self, node: list[Any]) -> Any:
        match node:
            case ["mine", int(number)]:
                return self.remote(number)
            case ["yours", int(number)]:
                return self.find_object(number)
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
    """A reference to an object of the other process; one for each object, equal only to itself.

    Its parts are returned as data, or as references too. Operators work between two references. A value of this process
    is never passed to an operator of the other process, as it might be the expected result of a test.
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
"""Operators that run in the process of their operands. `==` is not among them: the tests use their own."""


def _operator(name: str) -> Callable[..., Any]:
    def operate(self: Remote, *others: Any) -> Any:
        if not all(isinstance(other, Remote) for other in others):
            return NotImplemented
        return self._special(name, *others)

    return operate


for _name in OPERATORS:
    setattr(Remote, _name, _operator(_name))


def call(peer: Peer, number: int, arguments: Iterable[Any], keywords: Mapping[str, Any]) -> Any:
    """Call an object of the other process; changes that it makes to its arguments are also made here."""
    given = [*arguments, *keywords.values()]
    answer = peer.ask(op="call", of=number, arguments=peer.encode_all(given), keywords=[*keywords])
    return take_over(peer, given, answer)


def take_over(peer: Peer, given: list[Any], answer: Mapping[str, Any]) -> Any:
    """Return a result, after changes to the arguments were also made here; if it is an argument, return that object."""
    result, *theirs = peer.decode_all(answer["value"])
    if not theirs:
        return result
    if len(theirs) != len(given):
        raise WireError("an answer about other arguments")
    for one, other in zip(given, theirs, strict=True):
        _update_object(one, other, peer.classes)
    return next((one for one, other in zip(given, theirs, strict=True) if other is result and _can_change(one)), result)


def _can_change(value: Any) -> bool:
    return isinstance(value, list | dict | set | bytearray | collections.deque) or hasattr(value, "__dict__")


def _update_object(ours: Any, theirs: Any, named: Collection[str]) -> None:
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
