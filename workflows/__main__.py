"""Implements the commands of `python -m workflows`, which launch plans, fetch results and prune `outputs`.

python -m workflows launch rlvr_quickstart --training my_recipe.yaml
python -m workflows fetch EXECUTION [OUTPUT]...
python -m workflows fetch EXECUTION responses [--step A:B]
python -m workflows prune [--older-than DAYS] [--run NAME]... [--yes]
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import rich_click as click
import yaml

from tasks.config import Extendable, load_yaml
from tasks.flyte import backend, executions
from tasks.flyte.labels import labels_of
from tasks.flyte.training_responses import RESPONSES, fetch_responses
from tasks.inputs.files import DataFile, EvaluationFile, Recipe
from tasks.inputs.minimal_options import written_options
from tasks.inputs.sending import with_sent_files
from tasks.inputs.user_modules import MODULES, digests_of
from tasks.machine.error_report import run_command
from tasks.pruning import Plan
from tasks.reporting.index import write_index
from tasks.reporting.publication import new_run
from tasks.storage.locations import outputs_folder
from tasks.storage.outputs import alone, at_work, size_text
from tasks.view.command import Steps

if TYPE_CHECKING:
    from flytekit.remote import FlyteRemote

FILES: dict[str, type[Extendable]] = {"data": DataFile, "training": Recipe, "evaluation": EvaluationFile}
"""The inputs of the pipeline that are YAML files of the user, by name."""

COMPANION = "[default: the one that --training names; without it, the plan's]"
FILE = click.Path(exists=True, dir_okay=False, path_type=Path)


@click.group()
@click.option("-c", "--config", type=click.Path(exists=True, dir_okay=False), help="Flytekit's file of the backend.")
@click.option("-p", "--project", default="flytesnacks", show_default=True)
@click.option("-d", "--domain", default="development", show_default=True)
@click.pass_context
def main(context: click.Context, config: str | None, project: str, domain: str) -> None:
    """Launch plans on a Flyte backend, fetch the results of executions, and prune the files of local runs."""
    context.obj = partial(backend.connect, project, domain, config)


@main.command()
@click.argument("name")
@click.option("--version", help="Version of the launch plan.  [default: the one registered last]")
@click.option("--data", type=FILE, help="Data file.  [default: the one that --training names, or the plan's]")
@click.option("--training", type=FILE, help="Training recipe.  [default: the plan's]")
@click.option(
    "--evaluation", type=FILE, help="Evaluation file.  [default: the one that --training names, or the plan's]"
)
@click.option("--execution", help="Name of the execution.")
@click.option("--overwrite-cache", is_flag=True, help="Run every stage again, even if its result is cached.")
@click.pass_obj
def launch(
    connect: Callable[[], FlyteRemote],
    name: str,
    version: str | None,
    execution: str | None,
    overwrite_cache: bool,
    **given: Path | None,
) -> None:
    """Launch the registered launch plan NAME, such as rlvr_quickstart, optionally with other files than its defaults.

    The registered code runs; the local code reads and checks the files. Your modules that the files name must be
    registered in the local version. Data files that they name are uploaded.
    """
    remote = connect()
    inputs = {key: load_yaml(FILES[key], path) for key, path in given.items() if path is not None}
    recipe = inputs.get("training")
    if isinstance(recipe, Recipe):
        inputs = {"data": recipe.companion(DataFile), "evaluation": recipe.companion(EvaluationFile), **inputs}
    digests = digests_of(inputs.values())
    sent = with_sent_files(remote, inputs, say=click.echo)
    names = {key: str(path) for key, path in given.items() if path is not None}
    labels = labels_of(names, recipe if isinstance(recipe, Recipe) else None)
    address = executions.launch(
        remote,
        name,
        sent,
        version=version,
        labels=labels,
        execution=execution,
        overwrite_cache=overwrite_cache,
        environment={MODULES: json.dumps(digests)} if digests else {},
    )
    click.echo(f"launched    {address}")


@main.command()
@click.argument("execution")
@click.argument("outputs", nargs=-1)
@click.option("--step", "steps", type=Steps(), help="Of `responses`, only the files with this step or these steps.")
@click.pass_context
def fetch(context: click.Context, execution: str, outputs: tuple[str, ...], steps: tuple[int, int] | None) -> None:
    """Download OUTPUTS of EXECUTION, or all outputs, into a folder in outputs/, in the layout of a local run.

    Outputs that an earlier call downloaded into that folder are kept and not downloaded again. `responses` are those
    of training, which are only downloaded if they are named.
    """
    if steps is not None and RESPONSES not in outputs:
        raise click.UsageError(f"--step is for {RESPONSES}: name them after EXECUTION")
    context.with_resource(at_work())
    remote, runs = context.obj(), outputs_folder()
    ended = executions.find(remote, execution)
    named = tuple(name for name in outputs if name != RESPONSES)
    wanted = executions.chosen(ended, named) if named or not outputs else []
    with new_run(runs, ended.began, execution) as (folder, final):
        if final.exists():
            shutil.copytree(final, folder, dirs_exist_ok=True, copy_function=os.link)
        for output in wanted:
            target = folder / output.file_name
            if not target.exists():
                executions.download(remote, output, target)
            click.echo(f"{output.name:<22} {final / output.file_name}")
        for path in fetch_responses(remote, ended, folder / RESPONSES, steps) if RESPONSES in outputs else ():
            click.echo(f"{RESPONSES:<22} {final / RESPONSES / path.name}")
        for name, file in executions.input_files(ended, FILES):
            options = written_options(file, absolute=False)
            (folder / f"{name}.yaml").unlink(missing_ok=True)  # a link to the file of the earlier call
            (folder / f"{name}.yaml").write_text(yaml.safe_dump(options, sort_keys=False, allow_unicode=True))
    write_index(runs)


@main.command()
@click.option(
    "--older-than",
    "days",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    help="Remove outputs of runs that nothing has used for this number of days.",
)
@click.option("--run", "names", metavar="NAME", multiple=True, help="A run in outputs/runs to remove in any case.")
@click.option("--yes", is_flag=True, help="Remove what is printed.")
def prune(days: float, names: tuple[str, ...], yes: bool) -> None:
    """Print what can be removed from outputs/ and how much space that frees. With --yes, remove it.

    Leftovers of killed processes are removed regardless of their age. An interrupted run is kept until it is named, and
    so is everything it may need to resume. Results that are removed from the cache are computed again if needed.
    """
    with alone():
        plan = Plan(time.time() - days * 24 * 3600, names)
        click.echo("\n".join(plan.lines()))
        freed = plan.remove() if yes else 0
        if yes and (page := outputs_folder() / "index.html").is_file():
            write_index(page.parent)
    click.echo("".join(f"\n{sentence}" for sentence in plan.sentences), nl=bool(plan.sentences))
    if plan.going:
        click.echo(f"\n{size_text(freed)} are free now" if yes else "\n--yes removes this")


def explained() -> None:
    """Run the command, and convert errors of an unavailable or refusing backend to a `BackendError`."""
    try:
        main(prog_name="python -m workflows")
    except Exception as error:
        raise backend.backend_error(error) or error from error


if __name__ == "__main__":
    run_command(explained)
