"""Reads YAML files into pydantic models, and turns pydantic's errors into short messages.

Every specification of the project is a YAML file that is read with `load_yaml`, so all error messages have the same
form: the file, the field, its value, and the accepted values.
"""

from __future__ import annotations

import difflib
import glob
import itertools
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Self, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tasks.config.descriptions import read_from_syntax_trees
from tasks.config.fields import YAML, find_models, has_an_order, list_tags, replace_modules, replace_paths, sort_keys
from tasks.config.module_names import resolve_module_name
from tasks.config.option_names import compute_similarities, make_option_hint
from tasks.config.yaml_text import YamlError, parse_yaml
from tasks.failures import MistakeError

read_from_syntax_trees()

LONGEST_VALUE = 80
"""Maximum number of characters of a value quoted in an error message."""


class SpecError(MistakeError):
    """A user error in a specification. The message names the file, the field, its value and the accepted values."""


class Config(BaseModel):
    """Base class of specifications and options. Instances are immutable, and unknown keys are errors.

    The order of a mapping is ignored, unless its type is `InItsOrder`.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @field_validator("*")
    @classmethod
    def _sort_mappings(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[str(info.field_name)]
        return sort_keys(value) if isinstance(value, dict) and not has_an_order(field) else value


class Extendable(Config):
    """A specification that may have `extends: FILE` and contain only its differences from that file.

    FILE is a path relative to the file that contains it (on the command line, relative to the working directory), or
    the name of a file in `folder`. A dotted key, such as `objective.clip_high: 0.3`, is short for nested mappings.
    """

    folder: ClassVar[Path]
    reference: ClassVar[str] = ""
    """The page of docs/options that lists the options of this kind of file, or an empty text."""
    named_by_recipe: ClassVar[bool] = False
    """True if a recipe names a file of this kind (`RecipeFile.load_companion`), so that the file need not be given."""

    @classmethod
    def resolve(cls, data: dict[str, Any], folder: Path) -> dict[str, Any]:
        """Return a file's content with dotted keys expanded, and paths relative to the working directory.

        Raises:
            SpecError: a dotted key contradicts another key, or a path is relative to the working directory.
        """
        return _resolve(cls, data, folder)

    @model_validator(mode="before")
    @classmethod
    def _merge_extended(cls, data: Any) -> Any:
        return merge_extended(expand_dotted_keys(data), cls) if isinstance(data, dict) else data


Companion = TypeVar("Companion", bound=Extendable)


class RecipeFile(Extendable):
    """A specification that names the other files of a run."""

    def load_companion(self, model: type[Companion], recipe: str = "the recipe") -> Companion:
        """Return the file of type `model` that this one names.

        Args:
            model: the type of the file.
            recipe: the name of this file in error messages.

        Raises:
            SpecError: it cannot be read.
        """
        raise TypeError(f"{type(self).__name__} names no {model.__name__}")


class Composed(Config):
    """A specification made from a file of another type. It includes the content of all files that this file names."""

    written: ClassVar[type[Extendable]]
    """The type of the file that a user writes."""

    @classmethod
    def of(cls, file: Any) -> Self:
        """Return the specification for a file of type `written`.

        Raises:
            SpecError: a file that it names cannot be read or is invalid.
        """
        raise NotImplementedError


Model = TypeVar("Model", bound=BaseModel)
Value = TypeVar("Value")


@dataclass(frozen=True)
class _RunTime:
    """The marker that `RunTime` adds to a field's metadata."""


RunTime = Annotated[Value, _RunTime()]
"""The type of an option that changes how a stage runs (processes, memory, addresses, time limits) but not its result.

A cached result is valid for any value of the option, up to rounding and random sampling, so cache keys exclude the
option (`cache_keys.result_options`).
"""


def is_run_time(field: FieldInfo) -> bool:
    """Return whether an option is declared as `RunTime`, so that cache keys exclude it."""
    return _RunTime() in field.metadata


def load_yaml(model: type[Model], path: str | Path) -> Model:
    """Read the YAML file at `path` as a `model`. Raises one `SpecError` that lists all problems."""
    return _validate(model, read_yaml(path), str(path), Path(path).parent)


def from_options(model: type[Model], options: dict[str, Any], where: str) -> Model:
    """Return the `model` of options whose paths are relative to the working directory.

    `where` is the beginning of error messages.

    Raises:
        SpecError: the options are invalid. The message lists all problems.
    """
    return _validate(model, options, where, Path())


def parse(model: type[Model], text: str) -> Model:
    """Return the `model` given on the command line as JSON or YAML text, as a path, or by the name of a built-in file.

    Raises:
        SpecError: the file cannot be read, or its content is invalid. The message lists all problems.
    """
    if issubclass(model, Composed) and not _is_whole(model, text):
        return model.of(parse(model.written, text))
    if text.lstrip().startswith("{"):
        return _validate(model, _parse_text(text, "the given value"), "the given value", Path())
    if issubclass(model, Extendable) and not Path(text).is_file():
        return load_yaml(model, find_file(text, model))
    return load_yaml(model, text)


def _is_whole(model: type[Composed], text: str) -> bool:
    """Return whether a text is the specification itself as JSON, and not the file that it is made from."""
    return text.lstrip().startswith("{") and set(_parse_text(text, "the given value")) == set(model.model_fields)


def find_file(name: str, model: type[Extendable], beside: Path = Path(), where: str = "") -> Path:
    """Return the path of the file of type `model` that a user names, by a path that ends in .yaml or by its name.

    Args:
        name: a path relative to `beside`, or the name of a built-in file.
        model: the type of the file.
        beside: the folder of the file that contains the name, or the working directory on the command line.
        where: beginning of error messages. Defaults to the name.

    Raises:
        SpecError: there is no built-in file of this name, or no file at a path that another file contains.
    """
    if name.endswith(YAML):
        if where and not os.path.isfile(beside / name):
            raise SpecError(f"{where}: {beside / name}: no such file")
        return beside / name
    known = list_shipped_files(model)
    if name not in known:
        if os.path.isfile(beside / name):
            raise SpecError(f"{where or name}: not a YAML file; a path that ends in .yaml, or one of: {_join(known)}")
        written = next((name + ending for ending in YAML if (beside / (name + ending)).is_file()), None)
        hint = f" (did you mean {written!r}?)" if written else close_match(name, known)
        raise SpecError(f"{where or name}: no such file{hint}; a path that ends in .yaml, or one of: {_join(known)}")
    return model.folder / f"{name}.yaml"


def list_shipped_files(model: type[Extendable]) -> list[str]:
    """Return the names of the built-in files of a kind, sorted."""
    return sorted(path.stem for path in model.folder.glob("*.yaml"))


def _validate(model: type[Model], data: Any, where: str, beside: Path) -> Model:
    if not isinstance(data, dict):
        raise SpecError(f"{where}: must be a mapping with the keys {_join(model.model_fields)}; found {_quote(data)}")
    try:
        if issubclass(model, Extendable):
            data = merge_extended(model.resolve(data, beside), model, beside=beside)
        return model.model_validate(data)
    except ValidationError as error:
        raise SpecError(explain(error, where, model)) from None
    except SpecError as error:
        raise SpecError(f"{where}: {error}") from None


def read_yaml(path: str | Path) -> Any:
    """Return the content of a YAML file. Raises `SpecError` if it cannot be read or a key occurs twice."""
    try:
        return _parse_text(Path(path).read_text(encoding="utf-8"), str(path))
    except FileNotFoundError:
        raise SpecError(f"{path}: no such file") from None
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{path}: cannot be read: {error}") from None


def _parse_text(text: str, where: str) -> Any:
    try:
        return parse_yaml(text)
    except YamlError as error:
        raise SpecError(f"{where}: {error}") from None


def _resolve(model: type[BaseModel], data: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return the content of a file in `folder` with its dotted keys as mappings, and its paths as seen from here."""

    def resolve_path(path: str) -> str:
        seen = str(folder / path)
        if folder != Path() and glob.glob(path) and not glob.glob(seen) and not os.path.exists(seen):
            raise SpecError(
                f"{path!r}: there is no {seen}; a path in a file is relative to the file: for {path} in the working "
                f"directory write {os.path.relpath(path, folder)!r}"
            )
        return path if folder == Path() else seen

    def resolve_import(name: str) -> str:
        try:
            return resolve_module_name(name, folder)
        except ValueError as error:
            raise SpecError(str(error)) from None

    return replace_modules(model, replace_paths(model, expand_dotted_keys(data), folder, resolve_path), resolve_import)


def merge_extended(
    data: dict[str, Any], model: type[Extendable], *, beside: Path = Path(), below: tuple[Path, ...] = ()
) -> dict[str, Any]:
    """Merge `data` over the file that its key `extends` names, which may itself extend another file.

    Mappings are merged key by key. Any other value replaces the file's value. So does a mapping of another `kind`.

    Args:
        data: the content that extends the file.
        model: the type of both files.
        beside: the folder that a path is relative to.
        below: the files that extend this one, outermost first.

    Raises:
        SpecError: there is no such file, it does not contain a mapping, or files extend each other.
    """
    if "extends" not in data:
        return data
    name, own = data["extends"], {key: value for key, value in data.items() if key != "extends"}
    path = find_file(str(name), model, beside, f"extends = {_quote(name)}")
    above = (*below, path.resolve())
    if path.resolve() in below:
        circle = " > ".join(file.stem for file in above)
        raise SpecError(f"extends = {name!r}: a file that extends itself ({circle})")
    base = read_yaml(path)
    if not isinstance(base, dict):
        raise SpecError(f"extends = {name!r}: {path} must be a mapping; found {_quote(base)}")
    return merge(merge_extended(model.resolve(base, path.parent), model, beside=path.parent, below=above), own)


def expand_dotted_keys(data: dict[str, Any]) -> dict[str, Any]:
    """Return `data` with every dotted key, such as `objective.clip_high`, expanded into nested mappings.

    Raises:
        SpecError: a dotted key contradicts another key.
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
                raise SpecError(f"{key} = {_quote(value)}: conflicts with {name} = {_quote(below)}")
            inner[name] = inner = dict(below)
        if last in inner:
            raise SpecError(
                f"{key} = {_quote(value)}: conflicts with {last} = {_quote(inner[last])} in {'.'.join(path)}"
            )
        inner[last] = value
    return plain


def _is_dotted(key: Any) -> bool:
    return isinstance(key, str) and "." in key


def merge(base: dict[str, Any], over: dict[str, Any]) -> dict[str, Any]:
    """Merge the options `over` into `base` recursively. A mapping of another `kind` replaces the one in `base`."""
    if "kind" in over and over["kind"] != base.get("kind", over["kind"]):
        return over
    both = {
        key: merge(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in over.items()
    }
    return {**base, **both}


def explain(error: ValidationError, where: str, model: type[BaseModel]) -> str:
    """Return one line per problem that pydantic found in a `model`: `where: field = value: what would be accepted`."""
    problems = error.errors()
    # Pydantic drops a list's invalid items and then reports that the list is too short. Only the items are reported.
    inner = [problem["loc"] for problem in problems]
    reported = [
        problem
        for problem in problems
        if problem["type"] != "too_short"
        or not any(loc[: len(problem["loc"])] == problem["loc"] != loc for loc in inner)
    ]
    sentences: dict[Any, str] = {}
    for loc, together in itertools.groupby(reported, key=_make_group_key):
        same = list(together)
        sentences[loc] = (
            _describe_unknown_keys(same, where, model) if len(same) > 1 else _describe_problem(same[0], where, model)
        )
    return "\n".join(sentences.values())


def _make_group_key(problem: ErrorDetails) -> tuple[object, ...]:
    """Return a grouping key that is equal for all unknown keys of the same mapping, and unique for other problems."""
    is_key = problem["type"] == "extra_forbidden"
    return (problem["type"], *problem["loc"][:-1]) if is_key else ("one", *problem["loc"], problem["type"])


def _describe_unknown_keys(problems: list[ErrorDetails], where: str, model: type[BaseModel]) -> str:
    """Return one message for several unknown keys of the same mapping."""
    _, owners, _ = _locate(problems[0]["loc"], model)
    accepted = _list_accepted(owners)
    located = [(_locate(problem["loc"], model)[0], problem["input"]) for problem in problems]
    names = _join(f"{path}{_make_hint(path, value, accepted, model)}" for path, value in located)
    return f"{where}: {names}: unknown keys; accepted: {_join(accepted)}"


def _list_accepted(owners: Iterable[type[BaseModel]]) -> list[str]:
    return sorted({name for owner in owners for name in _list_keys(owner)})


def _make_hint(path: str, value: Any, accepted: list[str], model: type[BaseModel]) -> str:
    """Return a hint in parentheses on what may have been meant by the unknown key at `path`, or an empty text."""
    key = path.rpartition(".")[2]
    return make_option_hint(path, value, model, compute_similarities(key, accepted)) or close_match(key, accepted)


def close_match(name: str, accepted: Iterable[str]) -> str:
    """Return ` (did you mean 'x'?)` if one of the accepted names is close to `name`, else an empty text."""
    matches = difflib.get_close_matches(name, list(accepted), n=1)
    return f" (did you mean {matches[0]!r}?)" if matches else ""


def check_choice(name: str, accepted: Iterable[str], where: str, what: str) -> None:
    """Raise `SpecError` unless `name` is accepted, with the message `where: no WHAT is called NAME; there are: ...`."""
    known = sorted(accepted)
    if name not in known:
        raise SpecError(
            f"{where}: no {what} is called {name!r}{close_match(name, known)}; there are: {_join(known) or 'none'}"
        )


def _describe_problem(problem: ErrorDetails, where: str, model: type[BaseModel]) -> str:
    path, owners, below = _locate(problem["loc"], model)
    key, value, context = str(problem["loc"][-1]) if problem["loc"] else "", problem["input"], problem.get("ctx", {})
    value_text = f" = {_quote(value)}"
    match problem["type"]:
        case "extra_forbidden":
            accepted = _list_accepted(owners)
            value_text, text = "", f"unknown key{_make_hint(path, value, accepted, model)}; accepted: {_join(accepted)}"
        case "missing":
            about = [owner.model_fields[key].description or "" for owner in owners if key in owner.model_fields]
            described = " ".join(about[0].split()) if about else ""
            value_text, text = "", "required key is missing" + (f"; {described}" if described else "")
        case "union_tag_invalid":
            value_text, text = f".kind = {context['tag']!r}", f"must be one of {context['expected_tags']}"
        case "union_tag_not_found":
            kinds = sorted(tag for member in below for tag in list_tags(member))
            value_text, text = ".kind", f"required key is missing; one of {_join(kinds)}"
        case "literal_error" | "enum":
            text = f"must be {context['expected']}"
        case "value_error":
            # The message of a check over a whole model names the values itself.
            value_text = "" if isinstance(value, dict | list | tuple | BaseModel) else value_text
            text = str(context["error"])
        case _:
            text = problem["msg"].replace("Input should", "must", 1)
    return f"{where}: {path}{value_text}: {text}"


def _list_keys(model: type[BaseModel]) -> list[str]:
    return [*model.model_fields, *(["extends"] if issubclass(model, Extendable) else [])]


def _locate(
    loc: tuple[int | str, ...], model: type[BaseModel]
) -> tuple[str, list[type[BaseModel]], list[type[BaseModel]]]:
    """Return a problem's path in YAML notation, the models that contain its last key, and the models below this key.

    Pydantic's location also contains the chosen member of a union, which is not a key of the file.
    """
    path, owners, models = "", [model], [model]
    for step in loc:
        if isinstance(step, int):
            path += f"[{step}]"
            continue
        fields = [model.model_fields[step] for model in models if step in model.model_fields]
        chosen = [model for model in models if step in list_tags(model)]
        if chosen and not fields:
            models = chosen
            continue
        if not step.startswith("["):  # pydantic's [key], and the tags of `choose_tag`
            path += f".{step}" if path else step
        owners = models
        models = find_models([field.annotation for field in fields]) or models
    return path or "the whole file", owners, models


def _quote(value: Any) -> str:
    text = repr(value)
    if len(text) <= LONGEST_VALUE:
        return text
    half = (LONGEST_VALUE - 3) // 2  # show both ends, because the end of a path is the most informative
    return f"{text[:half]}...{text[-half:]}"


def _join(names: Iterable[str]) -> str:
    return ", ".join(names)
