"""YAML files into pydantic models, and pydantic's complaints into sentences.

Every specification of the project is one YAML file read through `load_yaml`, so that every mistake in one reads alike:
which file, which field, which value, and what would be accepted.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tasks.failures import MistakeError

LONGEST_VALUE = 80


class SpecError(MistakeError):
    """A user's mistake in a specification: names the file and field, the value, and what would be accepted."""


class Config(BaseModel):
    """Base of specifications: immutable, and a key it does not know is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class Extendable(Config):
    """A specification that may say `extends: FILE` and give only what differs from that file.

    FILE is a path, relative to the file that says it (on the command line: to the working directory), or the name of
    one in `folder`. A dotted key, `objective.clip_high: 0.3` say, is short for a mapping in a mapping.
    """

    folder: ClassVar[Path]
    named_by_recipe: ClassVar[bool] = False
    """True for a kind of file that a recipe names (`RecipeFile.companion`), so that the recipe's option is enough."""

    @model_validator(mode="before")
    @classmethod
    def _with_what_it_extends(cls, data: Any) -> Any:
        return extended(nested(data), cls.folder) if isinstance(data, dict) else data


Companion = TypeVar("Companion", bound=Extendable)


class RecipeFile(Extendable):
    """A specification that names the other files of a run."""

    def companion(self, model: type[Companion]) -> Companion:
        """Return the file of type `model` that this one names.

        Raises:
            SpecError: it cannot be read.
        """
        raise TypeError(f"{type(self).__name__} names no {model.__name__}")


Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


@dataclass(frozen=True)
class _RunTime:
    """The mark of `RunTime`."""


RunTime = Annotated[Value, _RunTime()]
"""The type of an option that says how a stage runs (processes, memory, addresses, patience) and not what comes of it.

A result that is there is right under any of its values, up to rounding and to what a run draws at random, so that a
stage's cache key leaves it out (`result_options`).
"""


def is_run_time(field: FieldInfo) -> bool:
    """Return whether an option is declared as `RunTime`, so that cache keys leave it out."""
    return _RunTime() in field.metadata


def result_options(value: Any) -> Any:
    """Return a configuration as JSON values without its `RunTime` options at any depth: what a result depends on."""
    if isinstance(value, BaseModel):
        fields = type(value).model_fields
        return {name: result_options(getattr(value, name)) for name in fields if not is_run_time(fields[name])}
    if isinstance(value, dict):
        return {key: result_options(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [result_options(item) for item in value]
    return value


def non_default_options(value: Any) -> Any:
    """`result_options`, without the options that have their default: the same under code that has more of them.

    The kind of a mapping that may be one of several always stays.
    """
    if isinstance(value, BaseModel):
        found = result_options(value)
        fields = {name: field for name, field in type(value).model_fields.items() if name in found}
        return {
            name: non_default_options(getattr(value, name))
            for name, field in fields.items()
            if name == "kind" or found[name] != result_options(field.get_default(call_default_factory=True))
        }
    if isinstance(value, dict):
        return {key: non_default_options(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [non_default_options(item) for item in value]
    return value


def load_yaml(model: type[Model], path: str | Path) -> Model:
    """The YAML file at `path` as a `model`; raises one `SpecError` that lists every problem in it."""
    return _valid(model, read_yaml(path), str(path), Path(path).parent)


def parse(model: type[Model], text: str) -> Model:
    """What a command line gives for a `model`: JSON or YAML text, or the path of a file that holds it.

    Raises:
        SpecError: see `load_yaml`.
    """
    if text.lstrip().startswith("{"):
        return _valid(model, _parsed(text, "the given value"), "the given value", Path())
    return load_yaml(model, text)


def _valid(model: type[Model], data: Any, where: str, beside: Path) -> Model:
    if not isinstance(data, dict):
        raise SpecError(
            f"{where}: must hold a mapping with the keys {_listed(model.model_fields)}; found {_shown(data)}"
        )
    try:
        if issubclass(model, Extendable):
            data = extended(nested(data), model.folder, beside=beside)
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(explain(error, where, model)) from None
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def read_yaml(path: str | Path) -> Any:
    """What a YAML file holds; raises `SpecError` where it cannot be read or a key occurs twice."""
    try:
        return _parsed(Path(path).read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None


def _parsed(text: str, where: str) -> Any:
    try:
        return yaml.load(text, Loader=_UniqueKeyLoader)  # noqa: S506 (a SafeLoader)
    except yaml.YAMLError as error:
        raise SpecError(f"{where}: not valid YAML: {' '.join(str(error).split())}") from None


def extended(
    data: dict[str, Any], folder: Path, *, beside: Path = Path(), below: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """`data` without its key `extends`, over the file that it names, which may itself extend another.

    Mappings are merged key by key, all else replaces what was there; so does a mapping of another `kind`.

    Args:
        data: what extends the file.
        folder: of the files that are given by name.
        beside: what a path is relative to.
        below: the files that led here.

    Raises:
        SpecError: there is no such file, it holds no mapping, or files extend each other.
    """
    if "extends" not in data:
        return data
    name, own = data["extends"], {key: value for key, value in data.items() if key != "extends"}
    if isinstance(name, str) and name.endswith((".yaml", ".yml")):
        path = beside / name
    else:
        known = sorted(path.stem for path in folder.glob("*.yaml"))
        if name not in known:
            raise SpecError(
                f"extends = {_shown(name)}: no such file; a path that ends in .yaml, or one of: {', '.join(known)}"
            )
        path = folder / f"{name}.yaml"
    above = (*below, path.resolve())
    if path.resolve() in below:
        circle = " > ".join(each.stem for each in above)
        raise SpecError(f"extends = {name!r}: a file that extends itself ({circle})")
    base = read_yaml(path)
    if not isinstance(base, dict):
        raise SpecError(f"extends = {name!r}: {path} must hold a mapping; found {_shown(base)}")
    return _merged(extended(nested(base), folder, beside=path.parent, below=above), own)


def nested(data: dict[str, Any]) -> dict[str, Any]:
    """`data` with each dotted key, `objective.clip_high` say, as the mappings that it stands for.

    Raises:
        SpecError: such a key stands beside another that says the same.
    """
    plain: dict[str, Any] = {key: value for key, value in data.items() if not _is_dotted(key)}
    for key, value in data.items():
        if not _is_dotted(key):
            continue
        *path, last = key.split(".")
        inner = plain
        for name in path:
            below = inner.get(name, {})
            if not isinstance(below, dict):
                raise SpecError(f"{key} = {_shown(value)}: stands beside {name} = {_shown(below)}")
            inner[name] = inner = dict(below)
        if last in inner:
            raise SpecError(
                f"{key} = {_shown(value)}: stands beside {last} = {_shown(inner[last])} in {'.'.join(path)}"
            )
        inner[last] = value
    return plain


def _is_dotted(key: Any) -> bool:
    return isinstance(key, str) and "." in key


def _merged(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    if "kind" in over and over["kind"] != base.get("kind", over["kind"]):
        return over
    both = {
        key: _merged(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }
    return {**base, **both}


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """One line per problem that pydantic found in a `model`: `where: field = value: what would be accepted`."""
    problems = error.errors()
    # Pydantic drops a list's bad items and then finds the list too short: the items are the mistake.
    inner = [problem["loc"] for problem in problems]
    kept = [
        problem
        for problem in problems
        if problem["type"] != "too_short"
        or not any(loc[: len(problem["loc"])] == problem["loc"] != loc for loc in inner)
    ]
    return "\n".join(_sentence(problem, where, model) for problem in kept)


def close_match(name: str, accepted: Iterable[str]) -> str:
    """` (did you mean 'x'?)` where one of the accepted names is close to `name`, else nothing."""
    found = difflib.get_close_matches(name, list(accepted), n=1)
    return f" (did you mean {found[0]!r}?)" if found else ""


def must_be_one_of(name: str, accepted: Iterable[str], where: str, what: str) -> None:
    """Raise `SpecError` unless `name` is among the accepted ones: `where: no WHAT is called NAME; there are: ...`."""
    known = sorted(accepted)
    if name not in known:
        raise SpecError(
            f"{where}: no {what} is called {name!r}{close_match(name, known)}; there are: {_listed(known) or 'none'}"
        )


class _UniqueKeyLoader(yaml.SafeLoader):
    """PyYAML keeps the last of two equal keys without a word; this one says where the second stands."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if isinstance(key_node, yaml.ScalarNode) and key_node.tag != "tag:yaml.org,2002:merge":
                key = key_node.value
                if key in seen:
                    raise yaml.MarkedYAMLError(
                        problem=f"the key {key!r} stands twice", problem_mark=key_node.start_mark
                    )
                seen.add(key)
        return super().construct_mapping(node, deep)


def _sentence(problem: ErrorDetails, where: str, model: type[BaseModel]) -> str:
    path, owners, below = _locate(problem["loc"], model)
    key, value, context = str(problem["loc"][-1]) if problem["loc"] else "", problem["input"], problem.get("ctx", {})
    shown = f" = {_shown(value)}"
    match problem["type"]:
        case "extra_forbidden":
            accepted = sorted({name for owner in owners for name in _keys(owner)})
            shown, text = "", f"unknown key{close_match(key, accepted)}; accepted: {_listed(accepted)}"
        case "missing":
            about = [owner.model_fields[key].description for owner in owners if key in owner.model_fields]
            shown, text = "", "required key is missing" + (f"; {about[0]}" if about and about[0] else "")
        case "union_tag_invalid":
            shown, text = f".kind = {context['tag']!r}", f"must be one of {context['expected_tags']}"
        case "union_tag_not_found":
            kinds = sorted(tag for member in below for tag in _tags(member))
            shown, text = ".kind", f"required key is missing; one of {_listed(kinds)}"
        case "literal_error" | "enum":
            text = f"must be {context['expected']}"
        case "value_error":
            # A check over a whole model says itself which values are at fault.
            shown = "" if isinstance(value, dict | list | tuple | BaseModel) else shown
            text = str(context["error"])
        case _:
            text = problem["msg"].replace("Input should", "must", 1)
    return f"{where}: {path}{shown}: {text}"


def _keys(model: type[BaseModel]) -> list[str]:
    return [*model.model_fields, *(["extends"] if issubclass(model, Extendable) else [])]


def _locate(
    loc: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[str, list[type[BaseModel]], list[type[BaseModel]]]:
    """Where a problem lies: its path as the YAML file writes it, the models its last key belongs to, those below it.

    Pydantic's location also names the chosen member of a union, which is no key of the file.
    """
    path, owners, models = "", [model], [model]
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        fields = [each.model_fields[step] for each in models if step in each.model_fields]
        chosen = [each for each in models if step in _tags(each)]
        if chosen and not fields:
            models = chosen
            continue
        if step != "[key]":
            path += f".{step}" if path else step
        owners = models
        models = [found for field in fields for found in _models_in([field.annotation])] or models
    return path or "the whole file", owners, models


def _models_in(annotations: Iterable[Any]) -> list[type[BaseModel]]:
    found: list[type[BaseModel]] = []
    for annotation in annotations:
        if isinstance(annotation, type) and issubclass(annotation, BaseModel):
            found.append(annotation)
        else:
            found += _models_in(get_args(annotation))
    return found


def _tags(model: type[BaseModel]) -> set[str]:
    """The values of the model's `kind`, the key by which this project tells the members of a union apart."""
    kind = model.model_fields.get("kind")
    return set(get_args(kind.annotation)) if kind and get_origin(kind.annotation) is Literal else set()


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= LONGEST_VALUE else text[: LONGEST_VALUE - 3] + "..."


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names)
