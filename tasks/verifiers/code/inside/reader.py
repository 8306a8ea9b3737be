"""Parses the values that `values` encodes. Messages can only create values of known kinds, not of the writer's."""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import importlib
import io
import types
from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import Any

from tasks.verifiers.code.inside.values import BUILTINS, BY_TEXT, NUMPY_KINDS, OpaqueError


def _make_stream(kind: type[io.StringIO] | type[io.BytesIO]) -> Callable[..., Any]:
    def make(content: Any, position: int) -> Any:
        stream: Any = kind(content)
        stream.seek(position)
        return stream

    return make


_MAKE: dict[str, Callable[..., Any]] = {
    "bytes": bytes.fromhex,
    "bytearray": bytearray.fromhex,
    "complex": complex,
    "Decimal": decimal.Decimal,
    "Fraction": fractions.Fraction,
    "range": range,
    "slice": slice,
    "datetime": datetime.datetime.fromisoformat,
    "date": datetime.date.fromisoformat,
    "time": datetime.time.fromisoformat,
    "timedelta": datetime.timedelta,
    "timezone": datetime.timezone,
    "StringIO": _make_stream(io.StringIO),
    "BytesIO": _make_stream(io.BytesIO),
    "Ellipsis": lambda: Ellipsis,
    "NotImplemented": lambda: NotImplemented,
}

_EMPTY: dict[str, Callable[[], Any]] = {
    "list": list,
    "dict": dict,
    "set": set,
    "Counter": collections.Counter,
    "OrderedDict": collections.OrderedDict,
    "namespace": types.SimpleNamespace,
}
"""Kinds that can contain themselves: they are created empty, and filled once all others are created."""


def _parse_text(node: list[Any]) -> Any:
    if node[1] not in BY_TEXT:
        raise ValueError("text of no known class")
    module, _, name = node[1].rpartition(".")
    return getattr(importlib.import_module(module), name)(str(node[2]))


_MADE_OF_PARTS: dict[str, Callable[[list[Any]], Any]] = {
    "tuple": tuple,
    "frozenset": frozenset,
    "keys": lambda parts: dict.fromkeys(parts).keys(),
    "values": lambda parts: dict(enumerate(parts)).values(),
    "items": lambda parts: dict(parts).items(),
}
"""Kinds that are created from their parts only."""
_MADE_OF_NODE: dict[str, Callable[[list[Any]], Any]] = {
    "int": lambda node: int(node[1], 16),
    "plain": lambda node: node[1],
    "builtin": lambda node: BUILTINS[node[1]],
    "text": _parse_text,
    "dtype": lambda node: importlib.import_module("numpy").dtype(str(node[1])),
}
"""Kinds without parts."""


def decode(
    message: Any,
    classes: Mapping[str, Any] | None = None,
    other: Callable[[list[Any]], Any] | None = None,
    *,
    arrays: bool = True,
    known: dict[Any, Any] | None = None,
) -> list[Any]:
    """Return the values that `encode` of the other process wrote.

    Args:
        message: the result of `encode`.
        classes: the classes, by name, whose instances are data.
        other: returns the value of a node that is not data.
        arrays: True for numpy's arrays and numbers. If False, they become lists and Python's numbers. An array without
            items is always a list, because an elementwise comparison with it finds no difference.
        known: the objects of earlier messages by their keys. An object that was the same there is the same here.

    Raises:
        OpaqueError: a node is not data, and there is no `other`.
        ValueError: the message is invalid.
    """
    try:
        return _Reader(
            message, {} if classes is None else classes, other, arrays, {} if known is None else known
        ).values()
    except OpaqueError:
        raise
    except (TypeError, LookupError, AttributeError, ArithmeticError, ImportError) as error:
        raise ValueError(f"values of no known form: {type(error).__name__}") from error


class _Reader:
    def __init__(
        self,
        message: Any,
        classes: Mapping[str, Any],
        other: Callable[[list[Any]], Any] | None,
        arrays: bool,
        known: dict[Any, Any],
    ) -> None:
        self._roots, self._nodes = message["values"], message["nodes"]
        self._keys, self._known = message.get("keys"), known
        self._classes, self._other, self._arrays = classes, other, arrays
        self._made: dict[int, Any] = {}

    def values(self) -> list[Any]:
        for number, node in enumerate(self._nodes):
            if (empty := self._make_empty(node)) is not None:
                self._made[number] = self._find_known(number, empty)
        filled = [*self._made]
        for number in range(len(self._nodes)):
            self._make(number)
        hashing = ("dict", "set", "Counter", "OrderedDict", "defaultdict")
        for number in sorted(filled, key=lambda number: self._nodes[number][0] in hashing):
            self._fill(self._made[number], self._nodes[number])
        return [self._resolve(root) for root in self._roots]

    def _resolve(self, reference: Any) -> Any:
        return self._made[reference[0]] if isinstance(reference, list) else reference

    def _find_known(self, number: int, made: Any) -> Any:
        """Return the object that an earlier message made of the same object, emptied, or else the new one."""
        if not self._keys:
            return made
        before = self._known.setdefault(self._keys[number], made)
        if type(before) is not type(made):
            return made
        if before is not made and self._nodes[number][0] in ("object", "namespace"):
            vars(before).clear() if hasattr(before, "__dict__") else None
        elif before is not made and hasattr(before, "clear"):
            before.clear()
        return before

    def _make_empty(self, node: list[Any]) -> Any:
        kind = node[0]
        if kind in _EMPTY:
            return _EMPTY[kind]()
        if kind == "deque":
            return collections.deque(maxlen=node[2])
        if kind == "defaultdict":
            return collections.defaultdict(BUILTINS[node[2]] if node[2] is not None else None)
        if kind == "object":
            ours = self._classes.get(node[1])
            if not isinstance(ours, type):
                raise OpaqueError(f"an instance of {node[1]!r:.80}, which is not defined here")
            return object.__new__(ours)
        return None

    def _make(self, number: int) -> None:
        """Make a value that cannot contain itself, after its parts; without recursion, at any depth."""
        pending = [number]
        while pending:
            number = pending[-1]
            if number in self._made:
                pending.pop()
                continue
            node = self._nodes[number]
            missing = [part[0] for part in _get_parts(node) if isinstance(part, list) and part[0] not in self._made]
            if missing:
                if len(pending) > len(self._nodes):
                    raise ValueError("a value that contains itself")
                pending += missing
            else:
                self._made[number] = self._find_known(number, self._make_from_parts(node))
                pending.pop()

    def _make_from_parts(self, node: list[Any]) -> Any:
        kind, parts = node[0], [self._resolve(part) for part in _get_parts(node)]
        if kind in _MADE_OF_PARTS:
            return _MADE_OF_PARTS[kind](parts)
        if kind in _MADE_OF_NODE:
            return _MADE_OF_NODE[kind](node)
        if kind == "made":
            return _MAKE[node[1]](*parts)
        return self._make_other(node, parts)

    def _make_other(self, node: list[Any], parts: list[Any]) -> Any:
        match node[0]:
            case "named":
                return self._named(str(node[1]), tuple(map(str, node[2])))(*parts)
            case "member" if isinstance(self._classes.get(node[1]), type):
                return self._classes[node[1]].__members__[node[2]]
            case "array" | "scalar" | "objects":
                return self._make_array(node, parts)
        if self._other is None:
            raise OpaqueError("something that is not data")
        return self._other(node)

    def _named(self, name: str, fields: tuple[str, ...]) -> Any:
        ours = self._classes.get(name)
        same = isinstance(ours, type) and issubclass(ours, tuple) and getattr(ours, "_fields", None) == fields
        return ours if same else _make_named_type(name, fields)

    def _make_array(self, node: list[Any], parts: list[Any]) -> Any:
        numpy = importlib.import_module("numpy")
        if node[0] == "objects":
            array = numpy.empty(len(parts), dtype=object)
            array[:] = parts
            array = array.reshape(node[1])
        else:
            dtype = numpy.dtype(str(node[1]))
            if dtype.kind not in NUMPY_KINDS:
                raise ValueError("an array of no known type")
            array = (
                numpy.frombuffer(bytes.fromhex(node[-1]), dtype).reshape(node[2] if node[0] == "array" else ()).copy()
            )
        if node[0] == "scalar":
            return array[()] if self._arrays else array.item()
        return array if self._arrays and array.size else array.tolist()

    def _fill(self, value: Any, node: list[Any]) -> None:
        parts = [self._resolve(part) for part in _get_parts(node)]
        match node[0]:
            case "list" | "deque":
                value.extend(parts)
            case "set":
                value.update(parts)
            case "object" | "namespace":
                for name, item in zip(parts[::2], parts[1::2], strict=True):
                    if name.startswith("__"):
                        raise ValueError("an attribute that is not data")
                    if not callable(getattr(type(value), name, None)):  # methods are taken from the class
                        object.__setattr__(value, name, item)
            case _:
                for key, item in zip(parts[::2], parts[1::2], strict=True):
                    value[key] = item


def _get_parts(node: list[Any]) -> list[Any]:
    """Return the references to the parts of a node."""
    match node[0]:
        case "list" | "tuple" | "set" | "frozenset" | "dict" | "Counter" | "OrderedDict" | "defaultdict" | "deque":
            parts = node[1]
        case "keys" | "values" | "items" | "namespace":
            parts = node[1]
        case "made" | "object" | "objects":
            parts = node[2]
        case "named":
            parts = node[3]
        case _:
            parts = []
    if not isinstance(parts, list):
        raise ValueError("a node without parts")
    return parts


@lru_cache(maxsize=256)
def _make_named_type(name: str, fields: tuple[str, ...]) -> Any:
    return collections.namedtuple(name, fields)  # it rejects names that are not identifiers
