"""The models in the fields of a pydantic model, and the fields that hold paths of files."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, GetPydanticSchema, SerializerFunctionWrapHandler, WrapSerializer
from pydantic.fields import FieldInfo

Value = TypeVar("Value")


YAML = (".yaml", ".yml")
"""Endings by which a path of a file of ours is told from the name of one that ships."""


@dataclass(frozen=True)
class PathMark:
    """The mark in a field's metadata of an option that may hold a path relative to the file that it stands in."""

    names: Literal["file", "files", "folder", "specification"]
    """Kind of what the option names: one file; files by paths, globs and lists of them; a folder; a file of YAML."""
    is_path: Callable[[str, Path], bool] = lambda *_: True
    """Takes the option's value and the folder of the file; returns whether the value is a path."""


InFile = Annotated[Value, PathMark("file")]
"""The type of an option that holds the path of a file, relative to the file in which the user wrote it."""

FilesInFile = Annotated[Value, PathMark("files")]
"""The type of an option that holds a path or a glob of files, or a list of them, as `InFile` does."""

FolderInFile = Annotated[Value, PathMark("folder")]
"""The type of an option that holds the path of a folder, as `InFile` does."""

NameOrFile = Annotated[Value, PathMark("specification", lambda value, _: value.endswith(YAML))]
"""The type of an option that holds the name of a file that ships, or a path as `InFile` does."""

HubOrFolder = Annotated[Value, PathMark("folder", lambda value, folder: (folder / value).is_dir())]
"""The type of an option that holds a model's id on the hub, or the path of a folder as `InFile` does."""


def path_mark(field: FieldInfo) -> PathMark | None:
    """Return the mark of an option that may hold a path, or None for another option."""
    return next((mark for mark in field.metadata if isinstance(mark, PathMark)), None)


def _as_json(value: Any) -> Any:
    """Return a value of a YAML file as JSON has it: keys of mappings are texts.

    Raises:
        ValueError: JSON has no such value, such as a date.
    """
    if isinstance(value, dict):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"{value!r} is no text, number, boolean, list or mapping")


Arguments = Annotated[dict, GetPydanticSchema(lambda _, handler: handler(dict[str, Any])), BeforeValidator(_as_json)]
"""The type of an option that holds a library's own arguments by name; their values are those that JSON has.

For flytekit it is a plain `dict`, as `Where` of a source is."""


EXACT = 2**53
"""Number below which a double, the only number of the console's forms, holds every integer."""


def in_one_order(value: Any) -> Any:
    """Return a value of a free mapping with the keys of all mappings sorted, and doubles that are integers as integers.

    The console's forms give mappings back in another order, and 2 as 2.0; neither may change a key of the cache.
    """
    if isinstance(value, dict):
        return {key: in_one_order(value[key]) for key in sorted(value, key=str)}  # in a list, YAML's may be numbers
    if isinstance(value, list | tuple):
        return [in_one_order(item) for item in value]
    is_integer = isinstance(value, float) and value.is_integer() and abs(value) < EXACT
    return int(value) if is_integer else value


@dataclass(frozen=True)
class _InItsOrder:
    """The mark in a field's metadata of a mapping whose order is part of the result."""


def _from_list(value: Any) -> Any:
    """Return the mapping that a list of mappings of one key stands for; anything else as it is.

    Raises:
        ValueError: a key occurs twice, or a mapping has another number of keys.
    """
    if not isinstance(value, list):
        return value
    mapping: dict[Any, Any] = {}
    for item in value:
        if not isinstance(item, dict) or len(item) != 1 or mapping.keys() & item.keys():
            raise ValueError("must be a mapping, or a list of mappings of one key each, whose keys differ")
        mapping |= item
    return mapping


def _as_list(value: dict[str, Any], serialize: SerializerFunctionWrapHandler) -> Any:
    mapping = serialize(value)
    return [{key: item} for key, item in mapping.items()] if len(mapping) > 1 else mapping


AsWritten = Annotated[Value, _InItsOrder()]
"""The type of a mapping that stays in the order in which the user wrote it."""

InItsOrder = Annotated[AsWritten[Value], BeforeValidator(_from_list), WrapSerializer(_as_list, when_used="json")]
"""The type of a mapping whose order is part of the result, such as that of the columns of a table.

As JSON, one of several keys is a list of mappings of one key each, because the mappings of Flyte's forms have no order.
A file may write it in either form.
"""


def has_an_order(field: FieldInfo) -> bool:
    """Return whether an option is declared as `InItsOrder` or `AsWritten`."""
    return _InItsOrder() in field.metadata


def models_in(annotations: Iterable[Any]) -> list[type[BaseModel]]:
    """Return the models that annotations hold, at any depth of unions and containers."""
    models: list[type[BaseModel]] = []
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            models.append(annotation)
        else:
            models += models_in(get_args(annotation))
    return models


def tags(model: type[BaseModel]) -> set[str]:
    """Return the values of the model's `kind`, the key that distinguishes the members of a union."""
    kind = model.model_fields.get("kind")
    return set(get_args(kind.annotation)) if kind and get_origin(kind.annotation) is Literal else set()


def with_paths(
    model: type[BaseModel], data: dict[str, Any], folder: Path, change: Callable[[str], str]
) -> dict[str, Any]:
    """Return the content of a file, as its YAML gives it, with `change` applied to the relative paths of its options.

    An absolute path, an address such as `s3://bucket/rows.jsonl` and a path in the home folder stay as they are.

    Args:
        model: the model of the content.
        data: the content, which may not be valid.
        folder: the folder of the file.
        change: takes a path and returns another.
    """

    def changed_path(field: FieldInfo, value: Any) -> Any:
        if isinstance(value, list):
            return [changed_path(field, item) for item in value]
        mark = path_mark(field)
        is_relative = isinstance(value, str) and not (
            "://" in value or value.startswith("~") or Path(value).is_absolute()
        )
        return change(value) if is_relative and mark and mark.is_path(value, folder) else value

    def changed(models: list[type[BaseModel]], value: Any) -> Any:
        if isinstance(value, list):
            return [changed(models, item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("kind")
        chosen = [model for model in models if isinstance(kind, str) and kind in tags(model)] or models
        result = {}
        for key, item in value.items():
            fields = [model.model_fields[key] for model in chosen if key in model.model_fields]
            # A key that no model has is a name, as in a mapping of models by name.
            inner = models_in(field.annotation for field in fields) if fields else models
            result[key] = changed(inner, item) if inner else item
            for field in fields[:1]:
                result[key] = changed_path(field, result[key])
        return result

    result: dict[str, Any] = changed([model], data)
    return result


def with_changed_files(
    value: Any, change: Callable[[str, PathMark, Any], Any], where: str = "", unread: Collection[str] = ()
) -> Any:
    """Return a specification with `change` applied to all of its options that name files or folders.

    Options that name other specifications are not among them: a specification contains what those files contain.

    Args:
        value: a model, or anything that may contain models.
        change: takes the option's name, its mark and its value, and returns another value or the same.
        where: the name of `value`, for that of its options.
        unread: names of models in `value` that stay as they are; of a model they are its `leave_out`.
    """
    begin = f"{where}." if where else ""
    if isinstance(value, list | tuple):
        named = [(getattr(item, "name", str(number)), item) for number, item in enumerate(value)]
        items = [item if name in unread else with_changed_files(item, change, f"{begin}{name}") for name, item in named]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: with_changed_files(item, change, f"{begin}{key}") for key, item in value.items()}
    if not isinstance(value, BaseModel):
        return value
    changes = {}
    for name, field in type(value).model_fields.items():
        option, mark = getattr(value, name), path_mark(field)
        if option is not None and mark is not None and mark.names != "specification":
            changed = change(f"{begin}{name}", mark, option)
        else:
            changed = with_changed_files(option, change, f"{begin}{name}", getattr(value, "leave_out", ()))
        if changed != option:
            changes[name] = changed
    return value.model_copy(update=changes) if changes else value
