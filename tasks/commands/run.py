"""Runs the pipeline or one part of it: `rlvr run`.

    rlvr run [data|train|evaluate|experiment] OPTIONS ──► pyflyte run OPTIONS workflows/FILE WORKFLOW INPUTS

The arguments are handed to flytekit's own command in this process, so that cache keys, checks and results are the
same as with `pyflyte run`. The options are declared here again, because flytekit loads for seconds.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import pkgutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import click

from tasks.commands.options import SpecFile, add_backend_options
from tasks.machine.packages import HOME

PYFLYTE = "flytekit.clis.sdk_in_container.pyflyte:main"
"""Flytekit's command, which is imported when it is called."""


class ResultPath(click.Path):
    """An option type for a result of an earlier run: its path, or the address of an execution's output.

    Args:
        example: a path that such a result has.
    """

    def __init__(self, example: str) -> None:
        super().__init__()
        self.example = example

    def get_missing_message(self, param: click.Parameter, ctx: click.Context | None) -> str:
        """Return an example of the whole command, which click appends to its message about a missing option."""
        if ctx is None:
            return f"An example: {param.opts[0]} {self.example}"
        results = [(other.opts[0], other.type) for other in ctx.command.params]
        given = [f"{option} {kind.example}" for option, kind in results if isinstance(kind, ResultPath)]
        return f"An example: {' '.join([ctx.command_path, *given])}"


FILES = {
    "data": (SpecFile("data"), "Data file: a name or a path (docs/options/data.md).  [default: the recipe's]"),
    "training": (SpecFile("training"), "Recipe: a name or a path (docs/options/training.md).  [default: quickstart]"),
    "evaluation": (
        SpecFile("evaluation"),
        "Evaluation file: a name or a path (docs/options/evaluation.md).  [default: the recipe's]",
    ),
    "experiment": (
        SpecFile("experiment"),
        "Experiment: a name or a path (docs/evaluation.md).  [default: quickstart]",
    ),
}
"""Inputs that are YAML files, with the text of their options."""

RESULTS = {
    "model": (ResultPath("outputs/latest/model"), "Folder of the initial checkpoint"),
    "mixture": (ResultPath("outputs/latest/mixture.parquet"), "Parquet file of the mixture"),
    "policy": (ResultPath("outputs/latest/policy"), "Folder of the trained policy"),
    "heldout": (ResultPath("outputs/latest/heldout.parquet"), "Parquet file of the held-out prompts"),
}
"""Inputs that are results of earlier runs, and required. An address of an execution's output is accepted."""


class Workflow(NamedTuple):
    """A workflow with its inputs.

    Attributes:
        file: path of its module in `workflows`.
        name: name of the workflow.
        inputs: names of its inputs, in `FILES` or `RESULTS`.
    """

    file: str
    name: str
    inputs: tuple[str, ...]


PIPELINE = Workflow("rlvr.py", "rlvr", ("data", "training", "evaluation"))
PARTS = {
    "data": Workflow("data.py", "data", ("model", *PIPELINE.inputs)),
    "train": Workflow("training.py", "train", ("model", "mixture", "data", "training")),
    "evaluate": Workflow("evaluation.py", "evaluation", ("model", "policy", "heldout", *PIPELINE.inputs)),
    "experiment": Workflow("experiments.py", "experiment", ("experiment",)),
}
"""The parts of the pipeline that run alone, and the pipeline of several variants."""

CLUSTER_CHECK = Workflow("cluster_check.py", "cluster_check", PIPELINE.inputs)

REMOTE_ONLY = ("image", "wait", "name", "label", "service_account")
"""Options that a run on this machine cannot have."""


def run_options(command: Any) -> Any:
    """Add the options of a run that are not inputs. They are options of `pyflyte run`, with the same meaning."""
    options = (
        click.option("-r", "--remote", is_flag=True, help="Run on a Flyte backend: your files and our code are sent."),
        add_backend_options,
        click.option("-i", "--image", multiple=True, metavar="[NAME=]IMAGE", help="Image of the pods.  (--remote)"),
        click.option("--name", help="Name of the execution.  (--remote)"),
        click.option("--label", multiple=True, metavar="KEY=VALUE", help="Label of the execution.  (--remote)"),
        click.option("--service-account", help="Kubernetes service account of the pods.  (--remote)"),
        click.option("--wait", is_flag=True, help="Wait until the execution has ended.  (--remote)"),
        click.option("--env", multiple=True, metavar="NAME=VALUE", help="Environment variable of the tasks."),
        click.option("--overwrite-cache", is_flag=True, help="Run every stage again, even if its result is cached."),
    )
    for option in reversed(options):
        command = option(command)
    return command


def add_input_options(workflow: Workflow) -> Any:
    """Return a decorator that adds the inputs of a workflow as options."""

    def add_options(command: Any) -> Any:
        for name in reversed(workflow.inputs):
            if name in RESULTS:
                path, text = RESULTS[name]
                help_text = f"{text}, such as {path.example}."
                command = click.option(f"--{name}", type=path, required=True, help=help_text)(command)
            else:
                kind, text = FILES[name]
                command = click.option(f"--{name}", type=kind, help=text)(command)
        return command

    return add_options


def run_workflow(workflow: Workflow, given: Mapping[str, Any]) -> None:
    """Run a workflow by flytekit's command `run`, in this process.

    Args:
        workflow: the workflow.
        given: the options of `run_options` and the inputs, by name.

    Raises:
        click.UsageError: an option of executions is given without `--remote`.
    """
    context = click.get_current_context()
    if not given["remote"] and (names := [name for name in REMOTE_ONLY if given[name]]):
        raise click.UsageError(f"--{names[0].replace('_', '-')} is an option of executions: add --remote", context)
    config = given["config"]
    from tasks.storage.locations import SANDBOX, sandbox_folder
    from tasks.storage.outputs import remove_empty_folders

    os.environ.setdefault(SANDBOX, str(sandbox_folder()))  # flytekit reads it when it is imported
    with contextlib.ExitStack() as stack:
        stack.enter_context(remove_empty_folders())
        pyflyte = pkgutil.resolve_name(PYFLYTE)
        root = stack.enter_context(_prepare_sent_folder() if given["remote"] else contextlib.nullcontext(HOME))
        command = [*(["--config", config] if config else []), "run", *_build_arguments(workflow, given, root)]
        try:
            pyflyte.main(command, prog_name="pyflyte", standalone_mode=False)
        except click.UsageError as error:
            error.ctx = context
            raise


def _prepare_sent_folder() -> contextlib.AbstractContextManager[Path]:
    """Return the folder to send to a cluster, with our packages in it.

    The modules of the workflows are imported from `HOME`, before flytekit finds the copies.
    """
    from tasks.flyte.archive import launch_folder

    for path in (HOME / "workflows").glob("*.py"):
        importlib.import_module(f"workflows.{path.stem}")
    return launch_folder()


def _build_arguments(workflow: Workflow, given: Mapping[str, Any], root: Path) -> Iterator[str]:
    """Yield the arguments of `pyflyte run` for a workflow in the folder `root`."""
    for option in ("remote", "wait", "overwrite_cache"):
        if given[option]:
            yield f"--{option.replace('_', '-')}"
    if given["remote"]:
        yield from ("--copy", "all")
    for option in ("project", "domain", "name", "service_account"):
        if given[option]:
            yield from (f"--{option.replace('_', '-')}", given[option])
    for option in ("image", "label", "env"):
        for value in given[option]:
            yield from (f"--{option}", value)
    yield from (str(root / "workflows" / workflow.file), workflow.name)
    for name in workflow.inputs:
        if given[name] is not None:
            yield from (f"--{name}", given[name])


@click.group(invoke_without_command=True)
@add_input_options(PIPELINE)
@run_options
@click.pass_context
def run(context: click.Context, **given: Any) -> None:
    """Run the pipeline, or one part of it, here or on a cluster.

    Without a part it checks the files, makes the data, trains, evaluates and reports. Finished stages are taken from
    the cache, and an interrupted run continues.
    """
    if context.invoked_subcommand is None:
        run_workflow(PIPELINE, given)
        return
    by_user = click.core.ParameterSource.COMMANDLINE
    early = [param for param in context.command.params if context.get_parameter_source(param.name or "") is by_user]
    if early:
        raise click.UsageError(f"write {early[0].opts[-1]} after {context.invoked_subcommand}", context)


def _add_part(name: str, text: str) -> None:
    """Add the subcommand that runs a part of the pipeline."""
    workflow = PARTS[name]

    @run.command(name, help=text)
    @add_input_options(workflow)
    @run_options
    def part(**given: Any) -> None:
        run_workflow(workflow, given)


_add_part("data", "Make the mixture: read, clean, roll out, select and mix.")
_add_part("train", "Train a policy on a mixture.")
_add_part("evaluate", "Evaluate policies on held-out prompts and benchmarks, and compare them.")
_add_part("experiment", "Run the pipeline for each variant of a recipe, and compare the results.")
