"""How flytekit's command line and its pods install_patches to people about our types: options, results and errors.

It has no hooks for these: each function here takes the place of one of its own, and calls it for all that is not ours.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from typing import Any

import rich_click as click
from click.core import ParameterSource
from flytekit.bin import entrypoint
from flytekit.clis.sdk_in_container import run, utils
from flytekit.core import promise
from flytekit.core.type_engine import get_underlying_type
from flytekit.interaction import click_types

from tasks.config import Config, Extendable, RecipeFile, SpecError, parse
from tasks.failures import mistake_in

_WRAPPED = re.compile(r"^(Error encountered while [^\n]*:\n  )+")
"""What flytekit puts before the message of an error, where a task runs on this machine."""

LISTED = 6
"""Results of which `pyflyte run` prints where each one is; of more, the names."""


class ConfigFile(click.ParamType):
    """The type of an option that takes a specification: the path of a YAML file, or the text of one."""

    name = "yaml"

    def __init__(self, model: type[Config]) -> None:
        self._model = model

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Called by click with what the user gave, or the default as JSON."""
        if isinstance(value, self._model):
            return value
        try:
            return parse(self._model, value)
        except SpecError as error:
            raise click.BadParameter(str(error)) from None


def _model_of(python_type: Any) -> type[Config] | None:
    kind = get_underlying_type(python_type)  # without the annotation that says what is hashed
    return kind if isinstance(kind, type) and issubclass(kind, Config) else None


def _typed(click_type: Callable[..., Any]) -> Callable[..., Any]:
    @wraps(click_type)
    def of(literal_type: Any, python_type: Any) -> Any:
        model = _model_of(python_type)
        return ConfigFile(model) if model else click_type(literal_type, python_type)

    return of


def _from_the_recipe(model: type[Any]) -> Callable[[click.Context, click.Parameter, Any], Any]:
    """What fills in a data or evaluation file that was not given: the one that the given recipe names.

    Click reads the options that were given before those that were not.
    """

    def filled(ctx: click.Context, param: click.Parameter, value: Any) -> Any:
        recipe = next((value for value in ctx.params.values() if isinstance(value, RecipeFile)), None)
        is_given = param.name is not None and ctx.get_parameter_source(param.name) != ParameterSource.DEFAULT
        try:
            return value if recipe is None or is_given else recipe.companion(model)
        except SpecError as error:
            raise click.BadParameter(str(error)) from None

    return filled


def _told(to_click_option: Callable[..., click.Option]) -> Callable[..., click.Option]:
    """The option of a specification with the first sentence about it as help, where flytekit prints its JSON schema."""

    @wraps(to_click_option)
    def option(*args: Any, **kwargs: Any) -> click.Option:
        made = to_click_option(*args, **kwargs)
        if isinstance(made.type, ConfigFile):
            model = made.type._model
            sentence = (model.__doc__ or "").split("\n\n")[0]
            made.help = f"{sentence} Keys: {model.__module__}.{model.__name__}."
            made.show_default = "the quickstart's" if made.default is not None else False
            if issubclass(model, Extendable) and model.named_by_recipe and made.default is not None:
                made.show_default = "the recipe's"
                made.callback = _from_the_recipe(model)
        return made

    return option


def _fetched(convert: Callable[..., Any], *, folder: bool) -> Callable[..., Any]:
    """A file or folder option that takes the output of an execution as well, which is found before anything starts."""

    @wraps(convert)
    def converted(self: click.ParamType, value: Any, param: click.Parameter | None, ctx: click.Context) -> Any:
        from tasks.flyte.remote_outputs import AddressError, is_output, stored_at

        if is_output(value):
            try:
                value = stored_at(value, ctx.obj.remote_instance(), folder=folder)
            except AddressError as error:
                raise click.BadParameter(str(error)) from None
        return convert(self, value, param, ctx)

    return converted


def _listed(make: Callable[..., Any]) -> Callable[..., Any]:
    """The named tuple of a local run's results, of which `pyflyte run` would print all in one line."""

    def text(results: Any) -> str:
        if len(results) > LISTED:
            return f"results     {', '.join(results._fields)}"
        return "\n".join(f"{name:<11} {value}" for name, value in results._asdict().items())

    @wraps(make)
    def made(*args: Any, **kwargs: Any) -> Any:
        results = make(*args, **kwargs)
        if hasattr(results, "_fields"):
            type(results).__str__ = text  # type: ignore[assignment]
        return results

    return made


def _printed(pretty_print: Callable[..., None]) -> Callable[..., None]:
    """On a terminal a mistake of the user is its sentence."""

    @wraps(pretty_print)
    def shown(error: Exception, *args: Any, **kwargs: Any) -> None:
        mistake = mistake_in(error)
        if mistake is None:
            pretty_print(error, *args, **kwargs)
        else:
            click.secho(f"Error: {_WRAPPED.sub('', str(mistake))}", fg="red", err=True)

    return shown


def _reported(traceback_text: Callable[..., str]) -> Callable[..., str]:
    """In the console, too."""

    @wraps(traceback_text)
    def text(error: Exception) -> str:
        mistake = mistake_in(error)
        return traceback_text(error) if mistake is None else str(mistake)

    return text


def install_patches() -> None:
    """Put the functions of this module in their places."""
    click_types.literal_type_to_click_type = _typed(click_types.literal_type_to_click_type)
    for kind, folder in ((click_types.FileParamType, False), (click_types.DirParamType, True)):
        kind.convert = _fetched(kind.convert, folder=folder)
    run.to_click_option = _told(run.to_click_option)
    promise.create_native_named_tuple = _listed(promise.create_native_named_tuple)
    utils.pretty_print_exception = run.pretty_print_exception = _printed(utils.pretty_print_exception)
    entrypoint.get_traceback_str = _reported(entrypoint.get_traceback_str)
