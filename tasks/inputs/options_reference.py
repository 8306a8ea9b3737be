"""Writes reference pages of all options of the files: `python -m tasks.inputs.options_reference FOLDER`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, NamedTuple, Union, get_args, get_origin

import annotated_types
from pydantic import BaseModel, BeforeValidator
from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from tasks.config import is_run_time
from tasks.inputs.json_schema import FILES

_HEAD = """# Options of the {name} file

This page is made from the code by `make reference`. A nested mapping is a section of its own, and a dotted key such as
`objective.clip_high: 0.3` is short for a mapping in a mapping. `extends` gives a file to start from: a path, or the
name of one in `{folder}/`.

Cache key: a changed option makes the stages that read it run again, unless it is a run-time option (`no`), which
changes how a stage runs and not its result.
"""

_BOUNDS = {
    annotated_types.Ge: ("ge", "≥"),
    annotated_types.Gt: ("gt", ">"),
    annotated_types.Le: ("le", "≤"),
    annotated_types.Lt: ("lt", "<"),
    annotated_types.MinLen: ("min_length", "length ≥"),
    annotated_types.MaxLen: ("max_length", "length ≤"),
}
"""The bounds of an option's value, with the attribute of each and its sign on the page."""


class Section(NamedTuple):
    """A model of a file, as a section of its page.

    Attributes:
        model: the model whose fields are the section's options.
        paths: the keys under which a file can contain the model, or empty for the file itself.
        run_time: whether the whole model is below a run-time option.
    """

    model: type[BaseModel]
    paths: list[str]
    run_time: bool

    @property
    def title(self) -> str:
        """Return the heading of the section."""
        return self.model.__name__ + (" (run-time)" if self.run_time else "")

    @property
    def anchor(self) -> str:
        """Return the anchor that GitHub's Markdown generates for the heading."""
        return self.model.__name__.lower() + ("-run-time" if self.run_time else "")


def sections(root: type[BaseModel]) -> list[Section]:
    """Return `root` and every model below it, each once, in the order of the options.

    A model that occurs below both run-time and other options has a section for each.
    """
    sections: dict[tuple[type[BaseModel], bool], Section] = {}

    def visit(model: type[BaseModel], path: str, run_time: bool) -> None:
        section = sections.setdefault((model, run_time), Section(model, [], run_time))
        if path in section.paths:
            return
        section.paths.append(path)
        for name, field in model.model_fields.items():
            for inner in _models_in(field.annotation):
                visit(inner, f"{path}.{name}".lstrip("."), run_time or is_run_time(field))

    visit(root, "", run_time=False)
    return list(sections.values())


def page(name: str, root: type[BaseModel], folder: str) -> str:
    """Return the page of the file that `root` describes, as Markdown.

    Args:
        name: the option of the pipeline that takes the file.
        root: the model of the file.
        folder: the folder of the built-in files.
    """
    parts = [_HEAD.format(name=name, folder=folder)]
    for section in sections(root):
        about = " ".join((section.model.__doc__ or "").split("\n\n")[0].split())
        keys = f"Keys: {', '.join(f'`{path}`' for path in section.paths)}. " if any(section.paths) else ""
        rows = [
            f"| `{option}` | {_cell(_type(field.annotation, field.metadata, section.run_time or is_run_time(field)))} "
            f"| {_cell(_default(field))} | {_cell(field.description or '')} "
            f"| {'no' if section.run_time or is_run_time(field) else 'yes'} |"
            for option, field in section.model.model_fields.items()
        ]
        table = ["| option | type | default | meaning | cache key |", "|---|---|---|---|---|", *rows]
        parts.append("\n".join([f"## {section.title}", "", f"{keys}{about}", "", *table, ""]))
    return "\n".join(parts)


def write(folder: Path) -> None:
    """Write the page of each kind of file to `folder`, such as `data.md`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, model in FILES.items():
        (folder / f"{name}.md").write_text(page(name, model, model.folder.name), encoding="utf-8")


def _models_in(annotation: Any) -> Iterator[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    arguments = get_args(annotation)
    for argument in (_given(arguments),) if get_origin(annotation) is Annotated else arguments:
        yield from _models_in(argument)


def _type(annotation: Any, metadata: Iterable[Any] = (), run_time: bool = False) -> str:
    """Return a description of a type and its bounds in terms of YAML. Models are links to their sections."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        text = _type(_given(arguments), arguments[1:], run_time)
    elif origin is Literal:
        text = ", ".join(f"`{value}`" for value in arguments)
    elif origin in (Union, UnionType):
        text = " or ".join(_type(argument, (), run_time) for argument in arguments)
    elif origin in (list, tuple, set, frozenset):
        text = f"list of {_type(arguments[0], (), run_time)}"
    elif origin is dict:
        text = f"mapping of {_type(arguments[0])} to {_type(arguments[1], (), run_time)}"
    elif isinstance(annotation, type) and issubclass(annotation, BaseModel):
        section = Section(annotation, [], run_time)
        text = f"[{section.title}](#{section.anchor})"
    else:
        text = "null" if annotation is NoneType else getattr(annotation, "__name__", str(annotation))
    bounds = [_BOUNDS[type(mark)] + (mark,) for mark in _marks(metadata) if type(mark) in _BOUNDS]
    return ", ".join([text, *(f"{sign} {getattr(mark, attribute)}" for attribute, sign, mark in bounds)])


def _given(arguments: tuple[Any, ...]) -> Any:
    """Return the type that a file may contain for an annotated type: a different one if a validator accepts it."""
    validators = [mark for mark in arguments[1:] if isinstance(mark, BeforeValidator)]
    taken = [mark.json_schema_input_type for mark in validators]
    return next((given for given in taken if given is not PydanticUndefined), arguments[0])


def _marks(metadata: Iterable[Any]) -> Iterator[Any]:
    for mark in metadata:
        if isinstance(mark, FieldInfo):  # a `Field` within `Annotated`
            yield from mark.metadata
        else:
            yield mark


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_unset=True)
        return f"`{json.dumps(value)}`" if value else "its own defaults"
    return f"`{json.dumps(value, default=str)}`"


def _cell(text: str) -> str:
    """Return a text as a cell of a Markdown table, on one line and with bars escaped."""
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    write(Path(sys.argv[1]))
