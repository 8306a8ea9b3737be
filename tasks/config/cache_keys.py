"""Selects the options of a configuration that change results, for the keys of cached results."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tasks.config.fields import has_an_order
from tasks.config.loading import is_run_time
from tasks.config.nested_values import changed

Value = TypeVar("Value")


@dataclass(frozen=True)
class _ByContent:
    """The marker that `ByContent` adds to a field's metadata."""


ByContent = Annotated[Value, _ByContent()]
"""The type of an option that names files whose content is in a digest of the specification that contains the option.

Cache keys include the digest, but not the location of the files.
"""


def is_in_keys(field: FieldInfo) -> bool:
    """Return whether cache keys include the value of an option, because it is neither `RunTime` nor `ByContent`."""
    return not is_run_time(field) and _ByContent() not in field.metadata


def result_options(value: Any) -> Any:
    """Return a configuration as JSON values, without options that cache keys exclude, at any depth (`is_in_keys`)."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {
            name: result_options(_keep_order(fields[name], getattr(value, name)))
            for name in fields
            if is_in_keys(fields[name])
        }
    return changed(value, lambda leaf: result_options(leaf) if isinstance(leaf, BaseModel) else leaf)


def _keep_order(field: FieldInfo, value: Any) -> Any:
    """Return the value of an option, converted to a list if it is a mapping whose order matters."""
    return [{key: item} for key, item in value.items()] if has_an_order(field) else value


def non_default_options(value: Any) -> Any:
    """Return `result_options` without options at their defaults, so that adding an option does not change the result.

    The `kind` of a union member is always kept.
    """
    if isinstance(value, BaseModel):
        options = result_options(value)
        fields = {name: field for name, field in type(value).model_fields.items() if name in options}
        return {
            name: non_default_options(_keep_order(field, getattr(value, name)))
            for name, field in fields.items()
            if name == "kind" or options[name] != result_options(field.get_default(call_default_factory=True))
        }
    return changed(value, lambda leaf: non_default_options(leaf) if isinstance(leaf, BaseModel) else leaf)
