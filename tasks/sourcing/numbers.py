"""Keeps numbers as they are written: digits beyond a double's precision, and the precision of narrow floats."""

from __future__ import annotations

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa

Converter = Callable[[Any], Any]


class WrittenFloat(float):
    """A float and the decimal that was written, because that has more digits than a float represents.

    Attributes:
        written: the decimal in the file.
    """

    written: Decimal


def parse_float(text: str) -> float:
    """Return a number of JSON that is not an integer: a `WrittenFloat` if a float does not have all of its digits."""
    value = float(text)
    if len(text) <= 15 and "e" not in text.lower():  # a double represents 15 digits
        return value
    written = Decimal(text)
    if math.isinf(value) or written == Decimal(repr(value)):
        return value
    number = WrittenFloat(text)
    number.written = written
    return number


def is_in_range(value: float | Decimal) -> bool:
    """Return False if a number is infinite or not a number, or if it is so small that a float would be 0."""
    if not math.isfinite(value):
        return False
    return value != 0 or not isinstance(value, WrittenFloat)


def format_decimal(value: float | Decimal) -> str:
    """Return the shortest decimal that is this number, without an exponent; an integer has no decimal point."""
    number = value.written if isinstance(value, WrittenFloat) else value
    text = format(number if isinstance(number, Decimal) else Decimal(repr(number)), "f")
    if "." in text:
        text = text.rstrip("0").removesuffix(".")
    return "0" if text == "-0" else text


def make_float_converter(type_: pa.DataType) -> Converter | None:
    """Return the function that converts the floats of 16 or 32 bits in values of an Arrow type, or None without any.

    A converted float is the shortest decimal of its type: 0.1, and not 0.10000000149011612, for a float32 of 0.1.
    """
    if pa.types.is_float32(type_) or pa.types.is_float16(type_):
        narrow = np.float32 if pa.types.is_float32(type_) else np.float16
        return lambda value: None if value is None else float(str(narrow(value)))
    if pa.types.is_map(type_):
        return _make_map_converter(make_float_converter(type_.key_type), make_float_converter(type_.item_type))
    if pa.types.is_struct(type_):
        fields = {field.name: make_float_converter(field.type) for field in type_}
        return _make_struct_converter({name: convert for name, convert in fields.items() if convert is not None})
    if pa.types.is_dictionary(type_):
        return make_float_converter(type_.value_type)
    if hasattr(type_, "value_type"):  # a list of any kind; a union has none
        return _make_list_converter(make_float_converter(type_.value_type))
    return None


def _make_list_converter(convert: Converter | None) -> Converter | None:
    if convert is None:
        return None
    return lambda value: None if value is None else [convert(item) for item in value]


def _make_map_converter(key: Converter | None, item: Converter | None) -> Converter | None:
    if key is None and item is None:
        return None
    of_key, of_item = key or (lambda value: value), item or (lambda value: value)
    return lambda value: None if value is None else [(of_key(name), of_item(held)) for name, held in value]


def _make_struct_converter(converters: dict[str, Converter]) -> Converter | None:
    if not converters:
        return None
    return lambda value: (
        None if value is None else value | {name: convert(value[name]) for name, convert in converters.items()}
    )


def convert_batch(batch: pa.RecordBatch | pa.Table) -> list[dict[str, Any]]:
    """Return the rows of a batch as Python values, with narrow floats as `make_float_converter` converts them."""
    rows: list[dict[str, Any]] = batch.to_pylist()
    convert = make_float_converter(pa.struct(batch.schema))
    return rows if convert is None else [convert(row) for row in rows]
