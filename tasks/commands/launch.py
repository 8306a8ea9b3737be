"""Launches registered launch plans: `rlvr launch`."""

from __future__ import annotations

import click

from tasks.commands.options import SpecFile, add_backend_options


@click.command()
@click.argument("name")
@add_backend_options
@click.option("--version", help="Version of the launch plan.  [default: the one registered last]")
@click.option(
    "--data", type=SpecFile("data"), help="Data file.  [default: the one that --training names, or the plan's]"
)
@click.option("--training", type=SpecFile("training"), help="Training recipe.  [default: the plan's]")
@click.option(
    "--evaluation",
    type=SpecFile("evaluation"),
    help="Evaluation file.  [default: the one that --training names, or the plan's]",
)
@click.option("--execution", help="Name of the execution.")
@click.option("--overwrite-cache", is_flag=True, help="Run every stage again, even if its result is cached.")
def launch(
    name: str,
    config: str | None,
    project: str,
    domain: str,
    version: str | None,
    execution: str | None,
    overwrite_cache: bool,
    **given: str | None,
) -> None:
    """Launch the registered launch plan NAME.

    NAME is rlvr_quickstart, for example. Other files than the plan's are read and checked here, and the registered code
    runs. Your modules that the files name must be registered in the local version. Data files that they name are
    uploaded.
    """
    from tasks.flyte import backend
    from tasks.inputs.launching import launch_plan

    files = {key: value for key, value in given.items() if value is not None}
    with backend.convert_errors():
        address = launch_plan(
            backend.connect(project, domain, config),
            name,
            files,
            version=version,
            execution=execution,
            overwrite_cache=overwrite_cache,
            say=click.echo,
        )
    click.echo(f"launched    {address}")
