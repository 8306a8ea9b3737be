"""Types and callbacks of the options of `pyflyte run`: YAML files, lists of files, addresses of outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from functools import wraps
from typing import Any

import rich_click as click
from click.core import ParameterSource

from tasks.config import Config, Extendable, RecipeFile, SpecError, parse
from tasks.flyte.labels import GIVEN
from tasks.flyte.literals import config_class

QUICKSTART = "quickstart"
"""Name of the recipe that is taken if a command line gives none."""


class ConfigFile(click.ParamType):
    """The type of a command line's option that takes a YAML file, or the text of one, as a model of `Config`."""

    name = "yaml"

    def __init__(self, model: type[Config]) -> None:
        self.model = model

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the value as the model; click calls it with the user's text, or with the default as JSON."""
        if isinstance(value, self.model):
            return value
        if ctx and param and param.name and (name := self._name(value, ctx.get_parameter_source(param.name))):
            ctx.meta.setdefault(GIVEN, {})[param.name] = name
        try:
            return parse(self.model, value)
        except SpecError as error:
            raise SpecError(f"{param.opts[0] if param else 'the value'}: {error}") from None

    def _name(self, value: Any, source: ParameterSource | None) -> str | None:
        """Return the name of the file that the user gave, or None for the text of a file and for a default."""
        if source is ParameterSource.DEFAULT:
            return QUICKSTART if issubclass(self.model, RecipeFile) else None
        return value if isinstance(value, str) and not value.lstrip().startswith("{") else None


class ListOf(click.ParamType):
    """The type of an option that takes a JSON list, such as `["a.parquet", "b.parquet"]`, whose items are of a type."""

    name = "json list"

    def __init__(self, item: click.ParamType) -> None:
        self.item = item

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the items as their type makes them; one path alone, not in brackets, is a list of one."""
        if isinstance(value, str):
            try:
                value = json.loads(value) if value.lstrip().startswith("[") else [value]
            except json.JSONDecodeError as error:
                raise click.BadParameter(f"{value}: not a JSON list: {error}") from None
        return [self.item.convert(item, param, ctx) for item in value]


def config_files(literal_type_to_click_type: Callable[..., Any]) -> Callable[..., Any]:
    """Give an option that takes a `Config` the type `ConfigFile`, and one that takes a list of files `ListOf`."""

    @wraps(literal_type_to_click_type)
    def click_type(literal_type: Any, python_type: Any) -> Any:
        model = config_class(python_type)
        items = literal_type.collection_type
        if items is not None and items.blob is not None:
            return ListOf(literal_type_to_click_type(items, None))
        return ConfigFile(model) if model else literal_type_to_click_type(literal_type, python_type)

    return click_type


def as_given(_: click.Context, __: click.Parameter, value: Any) -> Any:
    """Return the value of an option as its type made it: a callback of click.

    It stands where flytekit's callback would make a literal of the value, with `--remote`, before the callbacks of the
    other options run (`companion_callback` looks for a recipe). The client makes the same literal when it launches.
    """
    return value


def companion_callback(model: type[Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """Return a callback of click that reads the data or evaluation file which the given recipe names.

    It does so where the user gave no such file. Click handles options that were given before those that were not, so
    the recipe is already read.
    """

    def callback(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        recipe = next((value for value in ctx.params.values() if isinstance(value, RecipeFile)), None)
        is_given = param.name is not None and ctx.get_parameter_source(param.name) != ParameterSource.DEFAULT
        return value if recipe is None or is_given else recipe.companion(model)

    return callback


def short_help(to_click_option: Callable[..., click.Option]) -> Callable[..., click.Option]:
    """Describe a `ConfigFile` option by the first sentence of its model, and let the recipe give its default."""

    @wraps(to_click_option)
    def option(*args: Any, **kwargs: Any) -> click.Option:
        made = to_click_option(*args, **kwargs)
        if isinstance(made.type, ConfigFile):
            model = made.type.model
            sentence = (model.__doc__ or "").split("\n\n")[0]
            made.help = f"{sentence} Keys: {model.__module__}.{model.__name__}."
            made.show_default = "the quickstart's" if made.default is not None else False
            made.callback = as_given
            if issubclass(model, Extendable) and model.named_by_recipe and made.default is not None:
                made.show_default = "the recipe's"
                made.callback = companion_callback(model)
        return made

    return option


def output_addresses(convert: Callable[..., Any], *, folder: bool) -> Callable[..., Any]:
    """Let an option that takes a file or folder take the address of an execution's output, resolved before any task."""

    @wraps(convert)
    def converted(self: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context) -> Any:
        from tasks.flyte.remote_outputs import is_output, stored_at

        if is_output(value):
            value = stored_at(value, ctx.obj.remote_instance(), folder=folder)
        return convert(self, value, param, ctx)

    return converted
