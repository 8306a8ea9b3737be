"""Encodes values as JSON, by exact type, to send them between the processes of the response and of the tests.

    encode([x, (x, 1)])  ->  {"values": [[0], [1]], "nodes": [["list", [2]], ["tuple", [[0], 1]]]}    # x is [2]

None, booleans, text, floats and integers of up to 64 bits represent themselves. Everything else is a node, and
`[number]` refers to it: an object that occurs twice is decoded as one object, at any depth, and a value may contain
itself. A subclass of a data type is decoded as that type, a named tuple with its fields. Decoding (`reader`) runs no
code that the response defines: an instance of a class is decoded as an instance of the reader's class of that name with
its attributes, or not at all.
"""

from __future__ import annotations

import collections
import datetime
import decimal
import fractions
import io
import sys
import types
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Any

Refer = Callable[[Any], Any]
"""Returns the JSON reference to a part of a value."""


class OpaqueError(TypeError):
    """A value is not data: it can be neither encoded nor decoded."""


def encode(
    values: Iterable[Any],
    classes: Collection[str] = (),
    other: Callable[[Any], list[Any]] | None = None,
    alive: list[Any] | None = None,
) -> Any:
    """Return values as JSON.

    Args:
        values: the values.
        classes: names of the classes whose instances are data: their attributes.
        other: returns the node of a value that is not data.
        alive: the objects are appended to this list, and each gets a key. As long as they are in it, an object has the
            same key in every message.

    Raises:
        OpaqueError: a value is not data, and there is no `other`.
    """
    queue: list[Any] = []  # keeps the objects alive, so that their ids stay unique
    numbers: dict[int, int] = {}

    def refer(value: Any) -> Any:
        kind = type(value)
        if value is None or kind is bool or kind is str or kind is float:
            return value
        if kind is int and -(2**63) <= value < 2**63:
            return value
        number = numbers.get(id(value))
        if number is None:
            number = numbers[id(value)] = len(queue)
            queue.append(value)
        return [number]

    roots = [refer(value) for value in values]
    nodes = [_pack_value(value, refer, classes, other) for value in queue]  # which grows in the meantime
    if alive is None:
        return {"values": roots, "nodes": nodes}
    alive += queue
    return {"values": roots, "nodes": nodes, "keys": [*map(id, queue)]}


def _pack_value(
    value: Any, refer: Refer, classes: Collection[str], other: Callable[[Any], list[Any]] | None
) -> list[Any]:
    kind = type(value)
    if kind.__name__ in classes and (node := _pack_instance(value, kind, refer)):
        return node
    if "numpy" in sys.modules and (node := _pack_numpy(value, refer)):
        return node
    if pack := next((_PACK[each] for each in kind.__mro__ if each in _PACK), None):
        return pack(value, refer)
    if (name := f"{kind.__module__}.{kind.__qualname__}") in BY_TEXT:
        return ["text", name, str(value)]
    if isinstance(value, type | types.BuiltinFunctionType) and value in _NAMES:
        return ["builtin", _NAMES[value]]
    if other is None:
        raise OpaqueError(f"a value of type {kind.__name__}, which is not data")
    return other(value)


def _pack_instance(value: Any, kind: type, refer: Refer) -> list[Any] | None:
    """Return the node of an instance: the name of its class, and its attributes."""
    if isinstance(value, type | BaseException | tuple):
        return None
    if isinstance(member := getattr(value, "_name_", None), str):  # a member of an enumeration
        return ["member", kind.__name__, member]
    attributes = dict(getattr(value, "__dict__", {}))
    for base in kind.__mro__:
        slots = base.__dict__.get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if name not in ("__dict__", "__weakref__") and hasattr(value, name):
                attributes[name] = getattr(value, name)
    return ["object", kind.__name__, [part for name, item in attributes.items() for part in (str(name), refer(item))]]


def _pack_numpy(value: Any, refer: Refer) -> list[Any] | None:
    numpy = sys.modules["numpy"]
    if isinstance(value, numpy.ndarray):
        value = numpy.ndarray.view(value, numpy.ndarray)
        if value.dtype.kind == "O":
            return ["objects", list(value.shape), [refer(item) for item in value.ravel().tolist()]]
        if value.dtype.kind in NUMPY_KINDS:
            return ["array", value.dtype.str, list(value.shape), value.tobytes().hex()]
    if isinstance(value, numpy.generic) and value.dtype.kind in NUMPY_KINDS:
        return ["scalar", value.dtype.str, value.tobytes().hex()]
    if isinstance(value, numpy.dtype) and value.kind in NUMPY_KINDS:
        return ["dtype", value.str]
    return None


NUMPY_KINDS = "biufcSUmM"
"""Kinds of numpy's types whose values are determined by their bytes."""

BY_TEXT = frozenset(
    {
        *(f"pathlib.{name}" for name in ("PurePath", "PurePosixPath", "PosixPath", "PureWindowsPath")),
        *(f"ipaddress.IPv{version}{kind}" for version in (4, 6) for kind in ("Address", "Network", "Interface")),
        *("uuid.UUID", "zoneinfo.ZoneInfo"),
    }
)
"""Classes of the standard library whose instances are created from their text."""

BUILTINS: dict[str, Any] = {
    kind.__name__: kind
    for kind in (
        *(abs, all, any, bin, chr, divmod, hex, len, max, min, oct, ord, pow, round, sorted, sum),
        *(bool, bytearray, bytes, complex, dict, float, frozenset, int, list, range, set, str, tuple, type(None)),
        *(decimal.Decimal, fractions.Fraction, datetime.date, datetime.datetime, datetime.time, datetime.timedelta),
        *(collections.Counter, collections.OrderedDict, collections.defaultdict, collections.deque),
    )
}
"""Types of data and functions without effects: each process uses its own."""
_NAMES = {kind: name for name, kind in BUILTINS.items()}


def _make_sequence_packer(kind: str, base: Any) -> Callable[[Any, Refer], list[Any]]:
    return lambda value, refer: [kind, [refer(item) for item in base.__iter__(value)]]


def _make_pairs_packer(kind: str) -> Callable[[Any, Refer], list[Any]]:
    return lambda value, refer: [kind, [refer(part) for item in dict.items(value) for part in item]]


def _make_packer(kind: str, parts: Callable[[Any], Sequence[Any]]) -> Callable[[Any, Refer], list[Any]]:
    return lambda value, refer: ["made", kind, [refer(part) for part in parts(value)]]


def _pack_tuple(value: tuple[Any, ...], refer: Refer) -> list[Any]:
    items = [refer(item) for item in tuple.__iter__(value)]
    fields = getattr(type(value), "_fields", None)
    if isinstance(fields, tuple):
        return ["named", type(value).__name__, [str(field) for field in fields], items]
    return ["tuple", items]


def _make_view_packer(kind: str) -> Callable[[Any, Refer], list[Any]]:
    return lambda value, refer: [kind, [refer(item) for item in value]]


def _pack_defaultdict(value: Any, refer: Refer) -> list[Any]:
    factory = _NAMES.get(value.default_factory) if callable(value.default_factory) else None
    return ["defaultdict", [refer(part) for item in dict.items(value) for part in item], factory]


def _format_hex(value: Any) -> str:
    return ("-" if value < 0 else "") + hex(abs(int.__index__(value)))[2:]


def _format_iso(value: Any) -> tuple[str]:
    """Return the ISO form of a date or time; with a time zone it contains the offset, which comparisons use."""
    return (value.isoformat(),)


_PACK: dict[Any, Callable[[Any, Refer], list[Any]]] = {
    bool: lambda value, refer: ["plain", value],
    int: lambda value, refer: ["int", _format_hex(value)],
    float: lambda value, refer: ["plain", float.__float__(value)],
    str: lambda value, refer: ["plain", str.__str__(value)],
    list: _make_sequence_packer("list", list),
    tuple: _pack_tuple,
    collections.Counter: _make_pairs_packer("Counter"),
    collections.OrderedDict: _make_pairs_packer("OrderedDict"),
    collections.defaultdict: _pack_defaultdict,
    dict: _make_pairs_packer("dict"),
    set: _make_sequence_packer("set", set),
    frozenset: _make_sequence_packer("frozenset", frozenset),
    collections.deque: lambda value, refer: ["deque", [refer(item) for item in value], value.maxlen],
    type({}.keys()): _make_view_packer("keys"),
    type({}.values()): _make_view_packer("values"),
    type({}.items()): _make_view_packer("items"),
    bytes: _make_packer("bytes", lambda value: (bytes.hex(value),)),
    bytearray: _make_packer("bytearray", lambda value: (bytearray.hex(value),)),
    complex: _make_packer("complex", lambda value: (value.real, value.imag)),
    decimal.Decimal: _make_packer("Decimal", lambda value: (decimal.Decimal.__str__(value),)),
    fractions.Fraction: _make_packer("Fraction", lambda value: (value.numerator, value.denominator)),
    range: _make_packer("range", lambda value: (value.start, value.stop, value.step)),
    slice: _make_packer("slice", lambda value: (value.start, value.stop, value.step)),
    datetime.datetime: _make_packer("datetime", _format_iso),
    datetime.date: _make_packer("date", _format_iso),
    datetime.time: _make_packer("time", _format_iso),
    datetime.timedelta: _make_packer("timedelta", lambda value: (value.days, value.seconds, value.microseconds)),
    datetime.timezone: _make_packer("timezone", lambda value: (value.utcoffset(None),)),
    io.StringIO: _make_packer("StringIO", lambda value: (value.getvalue(), value.tell())),
    io.BytesIO: _make_packer("BytesIO", lambda value: (value.getvalue(), value.tell())),
    types.SimpleNamespace: lambda value, refer: [
        "namespace",
        [part for name, item in vars(value).items() for part in (str(name), refer(item))],
    ],
    type(Ellipsis): _make_packer("Ellipsis", lambda value: ()),
    type(NotImplemented): _make_packer("NotImplemented", lambda value: ()),
}
