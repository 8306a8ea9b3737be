"""Checks machines and models: `rlvr doctor`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from tasks.commands.lazy import LazyGroup, Subcommand
from tasks.commands.options import OVERRIDES, SpecFile
from tasks.commands.run import CLUSTER_CHECK, add_input_options, run_options, run_workflow

CHECKS = {
    "gpu-check": Subcommand(
        "tasks.gpu_check.__main__:main", "Check learner, engine and whole runs on this machine's GPU"
    ),
    "cluster-check": Subcommand(
        "tasks.commands.doctor:cluster_check", "Check that machines have what the run of a recipe needs"
    ),
    "model-check": Subcommand(
        "tasks.commands.doctor:model_check", "Check that learner, engine and export have the same policy for MODEL"
    ),
}
"""The subcommands, in the order of the help."""


@click.group(cls=LazyGroup, subcommands=CHECKS)
def doctor() -> None:
    """Check this machine, a cluster, or a model."""


@click.command("cluster-check")
@add_input_options(CLUSTER_CHECK)
@run_options
def cluster_check(**given: Any) -> None:
    """Check that machines have what the run of a recipe needs.

    It checks images, GPUs, network, storage and secrets of this machine or of a cluster with --remote.
    """
    run_workflow(CLUSTER_CHECK, given)


@click.command("model-check")
@click.argument("model", type=SpecFile("training"))
@OVERRIDES
@click.option("--engine/--no-engine", default=True, show_default=True, help="Compare with an engine, too.")
def model_check(model: str, overrides: tuple[str, ...], engine: bool) -> None:
    """Check that learner, engine and export have the same policy for MODEL.

    MODEL is a folder, or a recipe, whose model is checked. Options such as learner.dtype=float32 override those in the
    recipe; a folder uses the quickstart's options.
    """
    from tasks.commands.without_flyte import prepare_recipe_model
    from tasks.inputs.overrides import with_overrides
    from tasks.model_check.check import check_model
    from tasks.model_check.options import CheckedOptions
    from tasks.storage.model_folder import check_model_folder
    from tasks.storage.outputs import prevent_pruning

    with prevent_pruning():
        is_folder = Path(model).is_dir()
        config = with_overrides("quickstart" if is_folder else model, overrides)
        folder = check_model_folder(Path(model)) if is_folder else prepare_recipe_model(config.model)
        for what, apart in check_model(folder, CheckedOptions.from_config(config), engine=engine).items():
            click.echo(f"{apart.nats:10.2g} nats (rounding: {apart.tolerance:.2g}) between {what.rstrip(',')}")
