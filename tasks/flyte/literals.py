"""Reads Flyte's literals as this project's specifications, with short error messages."""

from __future__ import annotations

import re
from typing import Any

from flytekit.core.type_engine import TypeTransformerFailedError, get_underlying_type
from google.protobuf.json_format import MessageToDict
from google.protobuf.struct_pb2 import Struct
from pydantic import ValidationError

from tasks.config.loading import Config, SpecError, explain
from tasks.config.nested_values import changed
from tasks.failures import find_mistake, one_line

_FAILED_INPUT = re.compile(r"Error converting input '(\w+)':")
"""Beginning of flytekit's message on an input that it cannot read. The rest is the whole literal."""


def find_config_class(python_type: Any) -> type[Config] | None:
    """Return the type of an input without annotations if it is a subclass of `Config`, else None."""
    kind = get_underlying_type(python_type)
    return kind if isinstance(kind, type) and issubclass(kind, Config) else None


def to_json_values(struct: Struct) -> dict[str, Any]:
    """Return the content of a protobuf `Struct`, as sent by the console's forms, with whole numbers as `int`.

    A `Struct` has no integers: 24 comes back as 24.0. An option that is a float takes an `int` as well.
    """
    values: dict[str, Any] = changed(MessageToDict(struct), _whole_number)
    return values


def _whole_number(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def make_input_error(error: TypeTransformerFailedError, types: dict[str, Any]) -> Exception:
    """Return the error to raise for an input that flytekit could not read. Its message names the input and the key.

    Args:
        error: flytekit's error, whose message contains the whole literal.
        types: the Python types of the inputs, by name.
    """
    failed, cause = _FAILED_INPUT.match(str(error)), error.__context__
    if failed is None or cause is None:
        return error
    name = failed[1]
    model = find_config_class(types.get(name))
    if isinstance(cause, ValidationError) and model is not None:
        return SpecError(explain(cause, name, model))
    if mistake := find_mistake(cause):
        return SpecError(f"{name}: {mistake}")
    return TypeTransformerFailedError(f"{name}: {type(cause).__name__}: {one_line(cause)}")
