"""Defines types and callbacks for the options of `pyflyte run`: YAML files, lists of files, addresses of outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from pathlib import Path
from typing import Any

import rich_click as click
from click.core import ParameterSource

from tasks.config.loading import Composed, Config, Extendable, RecipeFile, SpecError, list_shipped_files, parse
from tasks.flyte.labels import GIVEN
from tasks.flyte.literals import find_config_class
from tasks.storage.addresses import AddressRefusedError, is_credentialed, open_address
from tasks.storage.run_folders import make_hint

QUICKSTART = "quickstart"
"""Name of the default recipe."""


class ConfigFile(click.ParamType):
    """A command-line option type for a YAML file, or its text, that is parsed into a subclass of `Config`."""

    name = "yaml"

    def __init__(self, model: type[Config]) -> None:
        self.model = model

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as the model. Click calls it with the user's text, or with the default as JSON."""
        if isinstance(value, self.model):
            return value
        if ctx and param and param.name and (name := self._name(value, ctx.get_parameter_source(param.name))):
            ctx.meta.setdefault(GIVEN, {})[param.name] = name
        try:
            return parse(self.model, value)
        except SpecError as error:
            raise SpecError(f"{param.opts[0] if param else 'the value'}: {error}") from None

    def _name(self, value: Any, source: ParameterSource | None) -> str | None:
        """Return the name of the file that the user gave, or None if the value is a file's text or the default."""
        if source is ParameterSource.DEFAULT:
            return QUICKSTART if issubclass(self.model, RecipeFile) else None
        return value if isinstance(value, str) and not value.lstrip().startswith("{") else None


class ListOf(click.ParamType):
    """An option type for a JSON list of items of one type, such as `["a.parquet", "b.parquet"]`."""

    name = "json list"

    def __init__(self, item: click.ParamType) -> None:
        self.item = item

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the converted items. A single path without brackets is a list with one item."""
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.lstrip().startswith("[") else [value]
            except json.JSONDecodeError as error:
                raise click.BadParameter(f"{value}: not a JSON list: {error}") from None
        return [self.item.convert(item, param, ctx) for item in value]


def parse_config_files(literal_type_to_click_type: Callable[..., Any]) -> Callable[..., Any]:
    """Use the type `ConfigFile` for options that take a `Config`, and `ListOf` for lists of files."""

    @wraps(literal_type_to_click_type)
    def choose_click_type(literal_type: Any, python_type: Any) -> Any:
        model = find_config_class(python_type)
        items = literal_type.collection_type
        if items is not None and items.blob is not None:
            return ListOf(literal_type_to_click_type(items, None))
        return ConfigFile(model) if model else literal_type_to_click_type(literal_type, python_type)

    return choose_click_type


def return_unchanged(_: click.Context, __: click.Parameter, value: Any) -> Any:
    """Return the value of an option unchanged, as a click callback.

    It replaces flytekit's callback, which with `--remote` would turn the value into a literal before the callbacks of
    the other options run (`make_companion_callback` looks for a recipe). The client makes the same literal at launch.
    """
    return value


def make_companion_callback(model: type[Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a click callback that reads the data or evaluation file named by the recipe.

    The callback does so if the user gave no such file. Click handles given options before defaults, so the recipe has
    already been read.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        recipe = next((value for value in ctx.params.values() if isinstance(value, RecipeFile)), None)
        is_given = param.name is not None and ctx.get_parameter_source(param.name) != ParameterSource.DEFAULT
        return value if recipe is None or is_given else recipe.load_companion(model)

    return callback


def show_short_help(to_click_option: Callable[..., click.Option]) -> Callable[..., click.Option]:
    """Describe a `ConfigFile` option by its model's first docstring paragraph, and take its default from the recipe."""

    @wraps(to_click_option)
    def option(*args: Any, **kwargs: Any) -> click.Option:
        made = to_click_option(*args, **kwargs)
        if isinstance(made.type, ConfigFile):
            model = made.type.model
            made.help = _describe_model(model)
            made.show_default = "the quickstart's" if made.default is not None else False
            made.callback = return_unchanged
            if issubclass(model, Extendable) and model.named_by_recipe and made.default is not None:
                made.show_default = "the recipe's"
                made.callback = make_companion_callback(model)
        if made.required:
            made.callback = require_options(made.callback)
        return made

    return option


def _describe_model(model: type[Config]) -> str:
    """Return what a file is for, the page with its options, and the names of the built-in ones."""
    written = model.written if issubclass(model, Composed) else model
    sentences = [(model.__doc__ or "").split("\n\n")[0]]
    if issubclass(written, Extendable):
        sentences += [f"Options: {written.reference}."] * bool(written.reference)
        sentences += [f"A path, or one of: {', '.join(list_shipped_files(written))}."]
    return " ".join(sentences)


def require_options(callback: Callable[..., Any] | None) -> Callable[..., Any]:
    """Return a click callback that names all missing options, and calls `callback` if its own was given.

    Click regards flytekit's default of None as a value, so that a required option could be left out.
    """

    def check_given(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        if value is not None:
            return callback(ctx, param, value) if callback else value
        # Click calls the callbacks of given options first.
        missing = [other.opts[0] for other in ctx.command.params if other.required and not ctx.params.get(other.name)]
        raise click.UsageError(f"Missing: {', '.join(missing)}.", ctx)

    return check_given


def resolve_output_addresses(convert: Callable[..., Any], *, folder: bool) -> Callable[..., Any]:
    """Let file and folder options accept the address of an execution's output, resolved before any task runs."""

    @wraps(convert)
    def convert_address(self: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context) -> Any:
        from tasks.flyte.remote_outputs import is_output, resolve_output

        if is_output(value):
            value = resolve_output(value, ctx.obj.remote_instance(), folder=folder)
        if isinstance(value, str):
            option = param.opts[0] if param else "the value"
            if not is_credentialed(value):
                _check_is_there(value, option, folder=folder)
            elif not getattr(ctx.obj, "is_remote", False):
                _check_stored(value, option)
        return convert(self, value, param, ctx)

    return convert_address


def _check_is_there(value: str, option: str, *, folder: bool) -> None:
    """Check that a file or folder exists, unless `value` is an address on the web.

    Raises:
        SpecError: it does not exist, or a folder is a file. The message names the newest results that have it, if any.
    """
    path = Path(value)
    if "://" in value or (path.is_dir() if folder else path.exists()):
        return
    elsewhere = (
        make_hint(path.parent, path.name) or "; give a path, such as one in outputs/latest, or an output's address"
    )
    raise SpecError(f"{option}: there is no {'folder' if folder else 'file'} {path}{elsewhere}")


def _check_stored(address: str, option: str) -> None:
    """Check that this machine can read an input of a local run on blob storage, before any task runs.

    Raises:
        SpecError: the storage refuses access, or nothing is at the address. The message has the option.
    """
    try:
        filesystem, path = open_address(address)
    except AddressRefusedError as error:
        raise SpecError(f"{option}: {error}") from None
    if not filesystem.exists(path):
        raise SpecError(f"{option}: {address}: no such file or folder")
