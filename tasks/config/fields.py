"""Finds the pydantic models in the fields of a configuration, and marks the fields that contain paths."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, get_args, get_origin

from pydantic import BaseModel, BeforeValidator, GetPydanticSchema, SerializerFunctionWrapHandler, WrapSerializer
from pydantic.fields import FieldInfo

Value = TypeVar("Value")


YAML = (".yaml", ".yml")
"""Extensions that distinguish the path of a specification from the name of a built-in one."""


@dataclass(frozen=True)
class PathMark:
    """The marker in a field's metadata of an option that may contain a path relative to its file."""

    names: Literal["file", "files", "folder", "specification"]
    """Type of the path: one file; files given by paths, globs and lists of them; a folder; or a YAML specification."""
    is_path: Callable[[str, Path], bool] = lambda *_: True
    """Function of the option's value and the folder of the file that returns whether the value is a path."""


InFile = Annotated[Value, PathMark("file")]
"""The type of an option with the path of a file, relative to the file that contains the option."""

FilesInFile = Annotated[Value, PathMark("files")]
"""The type of an option with a path or a glob of files, or a list of them. Paths are relative as in `InFile`."""

FolderInFile = Annotated[Value, PathMark("folder")]
"""The type of an option with the path of a folder, relative as in `InFile`."""

NameOrFile = Annotated[Value, PathMark("specification", lambda value, _: value.endswith(YAML))]
"""The type of an option with the name of a built-in file, or a path relative as in `InFile`."""

HubOrFolder = Annotated[Value, PathMark("folder", lambda value, folder: (folder / value).is_dir())]
"""The type of an option with a model's id on the hub, or the path of a folder, relative as in `InFile`."""


@dataclass(frozen=True)
class ModuleMark:
    """The marker in a field's metadata of an option with import paths of the user's code.

    Attributes:
        keys: if the option is a mapping, the keys whose values are import paths.
    """

    keys: tuple[str, ...] = ()


UserCode = Annotated[Value, ModuleMark()]
"""The type of an option with an import path, or a list of them. Modules in the folder of the file are found, too."""


def find_path_mark(field: FieldInfo) -> PathMark | None:
    """Return the marker of an option that may contain a path, or None for other options."""
    return next((mark for mark in field.metadata if isinstance(mark, PathMark)), None)


def _to_json(value: Any) -> Any:
    """Convert a value of a YAML file to JSON values. Keys of mappings become strings.

    Raises:
        ValueError: the value does not exist in JSON, such as a date.
    """
    if isinstance(value, dict):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(item) for item in value]
    if value is None or isinstance(value, str | int | float):
        return value
    raise ValueError(f"{value!r} is not a text, number, boolean, list or mapping")


Arguments = Annotated[dict, GetPydanticSchema(lambda _, handler: handler(dict[str, Any])), BeforeValidator(_to_json)]
"""The type of an option with keyword arguments for a library. Their values are JSON values.

For flytekit it is a plain `dict`, like `Where` of a source."""


EXACT = 2**53
"""Bound below which a double, the only number type in the console's forms, represents every integer exactly."""


def sort_keys(value: Any) -> Any:
    """Return a value of a free-form mapping with sorted keys, and with doubles that are integers converted to integers.

    The console's forms return mappings in another order, and 2 as 2.0. Neither may change a cache key.
    """
    if isinstance(value, dict):
        return {key: sort_keys(value[key]) for key in sorted(value, key=str)}  # YAML keys may be numbers
    if isinstance(value, list | tuple):
        return [sort_keys(item) for item in value]
    is_integer = isinstance(value, float) and value.is_integer() and abs(value) < EXACT
    return int(value) if is_integer else value


@dataclass(frozen=True)
class _InItsOrder:
    """The marker in a field's metadata of a mapping whose order affects the result."""


def _from_list(value: Any) -> Any:
    """Convert a list of single-key mappings to one mapping, and return any other value unchanged.

    Raises:
        ValueError: a key occurs twice, or a mapping does not have exactly one key.
    """
    if not isinstance(value, list):
        return value
    mapping: dict[Any, Any] = {}
    for item in value:
        if not isinstance(item, dict) or len(item) != 1 or mapping.keys() & item.keys():
            raise ValueError("must be a mapping, or a list of mappings of one key each, whose keys differ")
        mapping |= item
    return mapping


def _to_list(value: dict[str, Any], serialize: SerializerFunctionWrapHandler) -> Any:
    mapping = serialize(value)
    return [{key: item} for key, item in mapping.items()] if len(mapping) > 1 else mapping


AsWritten = Annotated[Value, _InItsOrder()]
"""The type of a mapping that keeps the user's order."""

InItsOrder = Annotated[AsWritten[Value], BeforeValidator(_from_list), WrapSerializer(_to_list, when_used="json")]
"""The type of a mapping whose order affects the result, such as the columns of a table.

In JSON, a mapping with several keys becomes a list of single-key mappings, because mappings in Flyte's forms have no
order. A file may use either form.
"""


def _keep_given(value: BaseModel, serialize: SerializerFunctionWrapHandler) -> Any:
    options = serialize(value)
    return {name: option for name, option in options.items() if name in value.model_fields_set}


OnlyGiven = Annotated[Value, WrapSerializer(_keep_given)]
"""The type of an option that replaces some options of another mapping of this type. Only given options are written,
because an option that is not given has its default here and keeps another value there."""


def has_an_order(field: FieldInfo) -> bool:
    """Return whether an option is declared as `InItsOrder` or `AsWritten`."""
    return _InItsOrder() in field.metadata


def choose_tag(value: Any) -> str:
    """Return the tag of an option that is either a name or the options of a model, as a pydantic discriminator.

    A tag in square brackets is left out of the paths in error messages.
    """
    return "[mapping]" if isinstance(value, dict | BaseModel) else "[name]"


def find_models(annotations: Iterable[Any]) -> list[type[BaseModel]]:
    """Return the pydantic models in type annotations, at any depth of unions and containers.

    The fields of these models are not searched.
    """
    models: list[type[BaseModel]] = []
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            models.append(annotation)
        else:
            models += find_models(get_args(annotation))
    return models


def list_tags(model: type[BaseModel]) -> set[str]:
    """Return the values of the model's `kind`, the key that distinguishes the members of a union."""
    kind = model.model_fields.get("kind")
    return set(get_args(kind.annotation)) if kind and get_origin(kind.annotation) is Literal else set()


def replace_paths(
    model: type[BaseModel], data: dict[str, Any], folder: Path, change: Callable[[str], str]
) -> dict[str, Any]:
    """Return the parsed content of a YAML file with `change` applied to the relative paths in its options.

    Absolute paths, URLs such as `s3://bucket/rows.jsonl` and paths in the home folder are unchanged.

    Args:
        model: the model of the content.
        data: the content, which may be invalid.
        folder: the folder of the file.
        change: takes a path and returns the new path.
    """

    def replace_path(field: FieldInfo, value: Any) -> Any:
        if isinstance(value, list):
            return [replace_path(field, item) for item in value]
        mark = find_path_mark(field)
        is_relative = isinstance(value, str) and not (
            "://" in value or value.startswith("~") or Path(value).is_absolute()
        )
        return change(value) if is_relative and mark and mark.is_path(value, folder) else value

    return _replace_options(model, data, replace_path)


def replace_modules(model: type[BaseModel], data: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Return the parsed content of a YAML file with `change` applied to the import paths in its options.

    Args:
        model: the model of the content.
        data: the content, which may be invalid.
        change: takes an import path, or a built-in name, and returns the new one.
    """

    def replace_name(field: FieldInfo, value: Any) -> Any:
        mark = next((mark for mark in field.metadata if isinstance(mark, ModuleMark)), None)
        if mark is None:
            return value
        if isinstance(value, list):
            return [replace_name(field, item) for item in value]
        if isinstance(value, dict):
            return {key: replace_name(field, item) if key in mark.keys else item for key, item in value.items()}
        return change(value) if isinstance(value, str) else value

    return _replace_options(model, data, replace_name)


def _replace_options(
    model: type[BaseModel], data: dict[str, Any], change: Callable[[FieldInfo, Any], Any]
) -> dict[str, Any]:
    """Return the parsed content of a YAML file with `change` applied to the fields and values of its options."""

    def apply_change(models: list[type[BaseModel]], value: Any) -> Any:
        if isinstance(value, list):
            return [apply_change(models, item) for item in value]
        if not isinstance(value, dict):
            return value
        kind = value.get("kind")
        chosen = [model for model in models if isinstance(kind, str) and kind in list_tags(model)] or models
        result = {}
        for key, item in value.items():
            fields = [model.model_fields[key] for model in chosen if key in model.model_fields]
            # A key that is not a field of a model is a name, as in a mapping of models by name.
            inner = find_models(field.annotation for field in fields) if fields else models
            result[key] = apply_change(inner, item) if inner else item
            for field in fields[:1]:
                result[key] = change(field, result[key])
        return result

    result: dict[str, Any] = apply_change([model], data)
    return result


def replace_files(
    value: Any, change: Callable[[str, PathMark, Any], Any], where: str = "", unread: Collection[str] = ()
) -> Any:
    """Return a specification with `change` applied to all options that name files or folders.

    Options that name other specifications are skipped, because their content is already included.

    Args:
        value: a model, or anything that may contain models.
        change: takes the option's name, its marker and its value, and returns the new value.
        where: the name of `value`, used as prefix of the names of its options.
        unread: names of models in `value` that are not changed. For the fields of a model, this is its `leave_out`.
    """
    begin = f"{where}." if where else ""
    if isinstance(value, list | tuple):
        named = [(getattr(item, "name", str(number)), item) for number, item in enumerate(value)]
        items = [item if name in unread else replace_files(item, change, f"{begin}{name}") for name, item in named]
        return tuple(items) if isinstance(value, tuple) else items
    if isinstance(value, dict):
        return {key: replace_files(item, change, f"{begin}{key}") for key, item in value.items()}
    if not isinstance(value, BaseModel):
        return value
    changes = {}
    for name, field in type(value).model_fields.items():
        option, mark = getattr(value, name), find_path_mark(field)
        if option is not None and mark is not None and mark.names != "specification":
            changed = change(f"{begin}{name}", mark, option)
        else:
            changed = replace_files(option, change, f"{begin}{name}", getattr(value, "leave_out", ()))
        if changed != option:
            changes[name] = changed
    return value.model_copy(update=changes) if changes else value
