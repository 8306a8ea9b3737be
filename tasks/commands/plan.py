"""Computes what recipes need, without any GPU: `rlvr plan` and `rlvr recipes`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.commands.options import OVERRIDES, RECIPE, SpecFile, list_shipped_names
from tasks.sizing import roofline

SHARE = click.FloatRange(0.01, 1)
"""Type of the command-line options that are fractions of a GPU's peak."""


@click.command()
@RECIPE
@OVERRIDES
@click.option("--gpu", type=click.Choice(list(roofline.GPUS)), default="H100", show_default=True)
@click.option("--config", "shape", type=click.Path(path_type=Path), help="config.json of a model that is not known.")
@click.option("--nodes", type=click.IntRange(min=2), help="Find the best split of this number of nodes.")
@click.option("--mean-tokens", type=click.FloatRange(1), help="Mean length of a response. By default 45% of the limit.")
@click.option(
    "--zero-variance",
    default=0.3,
    show_default=True,
    type=click.FloatRange(0, 0.95),
    help="Share of the groups that have no gradient.",
)
@click.option(
    "--mfu",
    type=SHARE,
    help="Fraction of a GPU's peak FLOPs that the learner reaches. By default 0.25 up to 2 billion parameters, and 0.3 "
    "above.",
)
@click.option(
    "--mbu",
    default=roofline.MBU,
    type=SHARE,
    show_default=True,
    help="Fraction of its peak bandwidth that an engine reaches.",
)
@click.option(
    "--measured",
    type=click.Path(path_type=Path),
    help="Results of `make gpu-check JSON=file`: the rates of weights that it measured.",
)
def plan(
    recipe: str,
    overrides: tuple[str, ...],
    gpu: str,
    shape: Path | None,
    nodes: int | None,
    mean_tokens: float | None,
    zero_variance: float,
    mfu: float | None,
    mbu: float,
    measured: Path | None,
) -> None:
    """Compute what RECIPE needs of GPUs, without using any.

    It prints memory, tokens/s, idle shares, days and pods, and the smallest gains that the evaluation detects.

    The controller and the fleet are the real ones, in virtual time. A roofline model gives the speeds of engines and
    learner; nothing is measured.
    """
    from tasks.inputs.detectable_gains import format_detectable_gains
    from tasks.inputs.files import DataFile, EvaluationFile
    from tasks.inputs.overrides import with_overrides
    from tasks.inputs.pod_table import format_pod_table
    from tasks.inputs.stage_pods import list_run_pods
    from tasks.planning.measured import ASSUMED, read_measured_rates
    from tasks.planning.plan import Machines, Plan, PlanError, Prompts, find_best_split
    from tasks.planning.plan import plan as planned
    from tasks.planning.plan_table import format_plan

    config = with_overrides(recipe, overrides)
    model = roofline.read_architecture(config.model.source.model_dump(), shape)
    rates = read_measured_rates(measured) if measured else ASSUMED
    machines = Machines(roofline.GPUS[gpu], config.cluster.gpus_per_node or 8, mfu, mbu, rates)
    prompts = Prompts(mean_tokens, zero_variance)
    own: Plan | PlanError | None = None
    if nodes:
        result = find_best_split(config.run, model, machines, nodes, prompts)
        try:
            own = planned(config.run, model, machines, prompts)
        except PlanError as error:
            own = error
    else:
        result = planned(config.run, model, machines, prompts)
    click.echo(format_plan(recipe, gpu, model, result, config.cluster, prompts, own))
    split = {name: getattr(result.config, name) for name in ("learner", "actors", "placement")}
    data, evaluation = config.load_companion(DataFile, recipe), config.load_companion(EvaluationFile, recipe)
    click.echo(f"\n{format_pod_table(list_run_pods(data, config.model_copy(update=split), evaluation))}")
    click.echo(f"\n{format_detectable_gains(data, evaluation)}")


@click.command()
@click.option("--gpu", type=click.Choice(list(roofline.GPUS)), default="H100", show_default=True)
@click.argument("names", nargs=-1, metavar="[RECIPE]...", type=SpecFile("training"))
def recipes(gpu: str, names: tuple[str, ...]) -> None:
    """Print the table of all included recipes, or of some.

    It has their pods, and the memory and hours that `plan` computes.
    """
    from tasks.config.loading import parse
    from tasks.inputs.files import Recipe
    from tasks.planning.recipe_table import HEAD, format_recipe_row

    click.echo("\n".join(HEAD))
    for name in names or list_shipped_names("training"):
        click.echo(format_recipe_row(name, parse(Recipe, name), gpu))
