"""Trains on a mixture without Flyte: `rlvr train`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.commands.options import EXISTING, FOLDER, OVERRIDES, RECIPE, SpecFile


@click.command()
@RECIPE
@OVERRIDES
@click.option("--mixture", required=True, type=EXISTING, help="Parquet file of a mixture.")
@click.option("--model", type=FOLDER, help="Folder of the initial checkpoint. By default the recipe's.")
@click.option("--data", type=SpecFile("data"), help="Data file, for its verifiers. By default the recipe's.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="Run folder, to resume an interrupted run from. By default outputs/runs/<digest>, as in the pipeline. Use "
    "another folder for fewer steps than the run in it has taken.",
)
@click.option("--cluster", default="local", show_default=True, help="Address of a Ray cluster; local: this machine.")
def train(
    recipe: str,
    overrides: tuple[str, ...],
    mixture: Path,
    model: Path | None,
    data: str | None,
    folder: Path | None,
    cluster: str,
) -> None:
    """Train by RECIPE on a mixture, without Flyte.

    RECIPE is a name or a path. Options such as objective.clip_high=0.3 override its own.

    The same command resumes an interrupted run, and a larger number of steps continues it. Other options, or fewer
    steps, start another run. The checks of `doctor model-check` run first.
    """
    from tasks.commands.without_flyte import train_recipe
    from tasks.storage.outputs import prevent_pruning

    with prevent_pruning():
        results = train_recipe(recipe, overrides, mixture, model=model, data=data, folder=folder, cluster=cluster)
    for name, path in results.items():
        click.echo(f"{name:<12}{path}")
