"""Defines the arguments and options that several subcommands have, with what completion offers for them."""

from __future__ import annotations

import glob
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

import click
from click.shell_completion import CompletionItem

from tasks.machine.packages import HOME

FOLDERS = {
    "data": HOME / "data_specs",
    "training": HOME / "workflows" / "recipes",
    "evaluation": HOME / "workflows" / "evaluations",
    "experiment": HOME / "workflows" / "variants",
}
"""The folders of the files that ship, by kind."""

EXISTING = click.Path(exists=True, dir_okay=False, path_type=Path)
FOLDER = click.Path(exists=True, file_okay=False, path_type=Path)
CONFIG = click.Path(exists=True, dir_okay=False)
"""Types of options that name an existing file, or an existing folder."""

NAMED_VALUES = {"boolean": ("true", "false"), "null": ("null",)}
"""The values of types that have few, by the type's name in a JSON schema."""

LATEST = "outputs/latest"
"""The folder of the last run."""

Command = TypeVar("Command", bound=Callable[..., Any])


class SpecFile(click.ParamType):
    """The name of a file that ships, or the path of a YAML file. The subcommand reads it."""

    name = "file"

    def __init__(self, kind: str) -> None:
        self.kind = kind

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the names of the files that ship, and YAML files and folders."""
        return find_completions([self.kind], incomplete)


class Override(click.ParamType):
    """An option of a recipe with its value, as in `objective.clip_high=0.3`."""

    name = "key=value"

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the options of a recipe that begin with `incomplete`, or the values of the option before the `=`."""
        key, sign, value = incomplete.partition("=")
        options = list_options("training")
        if sign:
            return [CompletionItem(f"{key}={known}") for known in options.get(key, ()) if known.startswith(value)]
        return [CompletionItem(f"{name}=") for name in options if name.startswith(incomplete)]


class Run(click.Path):
    """The folder of a run."""

    def __init__(self) -> None:
        super().__init__(path_type=Path)

    def shell_complete(self, ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        """Return the runs in `outputs`, newest first, and folders if none begins with `incomplete`."""
        runs = sorted((path.parent for path in Path("outputs").glob("*/summary.json")), reverse=True)
        items = [CompletionItem(str(path)) for path in runs if str(path).startswith(incomplete)]
        return items or [CompletionItem(incomplete, type="dir")]


class Steps(click.ParamType):
    """A step of training, or a range of steps with both ends: `41`, `40:60`."""

    name = "N or A:B"

    def convert(self, value: object, param: click.Parameter | None, context: click.Context | None) -> tuple[int, int]:
        """Return the first and the last step."""
        first, colon, last = str(value).partition(":")
        try:
            steps = (int(first), int(last if colon else first))
        except ValueError:
            self.fail(f"{value!r} is neither a step, such as 41, nor a range of steps, such as 40:60", param, context)
        if not 0 <= steps[0] <= steps[1]:
            self.fail(f"{value!r}: a range begins with its lower step, and steps begin with 0", param, context)
        return steps


RECIPE = click.argument("recipe", type=SpecFile("training"))
OVERRIDES = click.argument("overrides", nargs=-1, metavar="[KEY=VALUE]...", type=Override())


def add_backend_options(command: Command) -> Command:
    """Add the options that name a Flyte backend, and a project and a domain on it."""
    options = (
        click.option("-c", "--config", type=CONFIG, help="Flytekit's file of the backend."),
        click.option("-p", "--project", envvar="FLYTE_DEFAULT_PROJECT", default="flytesnacks", show_default=True),
        click.option("-d", "--domain", envvar="FLYTE_DEFAULT_DOMAIN", default="development", show_default=True),
    )
    for option in reversed(options):
        command = option(command)
    return command


def list_shipped_names(kind: str) -> list[str]:
    """Return the names of the files of a kind that ship, sorted."""
    return sorted(path.stem for path in FOLDERS[kind].glob("*.yaml"))


def find_completions(kinds: list[str], incomplete: str) -> list[CompletionItem]:
    """Return the names and files that begin with `incomplete`: files that ship, and YAML files and folders here.

    If there are none, the shell completes the names of files.
    """
    names = sorted({name for kind in kinds for name in list_shipped_names(kind) if name.startswith(incomplete)})
    folder, _, beginning = incomplete.rpartition("/")
    here = Path(folder or ("/" if incomplete.startswith("/") else "."))
    prefix = incomplete[: len(incomplete) - len(beginning)]
    paths = [
        f"{prefix}{path.name}{'/' if path.is_dir() else ''}"
        for path in sorted(here.glob(f"{glob.escape(beginning)}*"))
        if (path.is_dir() or path.suffix == ".yaml") and (beginning.startswith(".") or path.name[0] != ".")
    ]
    items = [CompletionItem(name) for name in (*names, *paths)]
    return items or [CompletionItem(incomplete, type="file")]


def list_options(kind: str) -> dict[str, list[str]]:
    """Return the options of a kind of file by their dotted keys, each with its values if the schema lists them.

    They are read from the JSON schema, because importing the options takes a second.
    """
    schema = json.loads((HOME / "workflows" / "schemas" / f"{kind}.json").read_text())
    definitions = schema.get("$defs", {})

    def list_choices(field: dict[str, Any], path: str, above: tuple[str, ...]) -> Iterator[tuple[str, list[str]]]:
        values: list[str] = []
        for member in [field, *field.get("anyOf", ()), *field.get("oneOf", ()), *field.get("allOf", ())]:
            name = member.get("$ref", "").rpartition("/")[-1]
            named = definitions[name] if name and name not in above else member
            for key, inner in named.get("properties", {}).items():
                yield from list_choices(inner, f"{path}.{key}", (*above, name))
            values += [json.dumps(value).strip('"') for value in named.get("enum", ())]
            values += NAMED_VALUES.get(named.get("type"), ())
        yield path, values

    known: dict[str, list[str]] = {}
    for key, field in schema["properties"].items():
        for path, values in list_choices(field, key, ()):
            known[path] = sorted({*known.get(path, ()), *values})
    return dict(sorted(known.items()))
