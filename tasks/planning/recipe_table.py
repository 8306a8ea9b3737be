"""Builds the table of the included recipes: their placement, and the memory and hours that `plan` computes."""

from __future__ import annotations

from tasks.inputs.files import DataFile, Recipe
from tasks.inputs.memory_needs import judge_gpus
from tasks.planning.plan import Machines, PlanError, plan
from tasks.planning.plan_table import figure
from tasks.sizing import roofline
from tasks.sizing.roofline import GB
from tasks.training.cluster.pods import is_in_one_pod, ray_job

HEAD = (
    "| recipe | pods | learner rank, GB | engine: weights, KV cache, GB | GPUs | hours | GPU hours |",
    "|---|---|---|---|---|---|---|",
)
"""The first two lines of the table."""


def format_recipe_row(name: str, recipe: Recipe, gpu: str = "H100") -> str:
    """Return a recipe's row of the table, with the numbers that `plan` computes without options.

    Args:
        name: name of the recipe.
        recipe: the recipe with this name.
        gpu: name of the GPU, a key of `roofline.GPUS`.
    """
    judging = judge_gpus(recipe.load_companion(DataFile))
    cells = [f"`{name}`", describe_pods(recipe, judging)]
    if not recipe.cluster.gpus_per_node:
        return _format_row([*cells, "-", "-", "none", "-", "-"])
    machines = Machines(roofline.GPUS[gpu], recipe.cluster.gpus_per_node)
    try:
        model = roofline.read_architecture(recipe.model.source.model_dump(), None)
        computed = plan(recipe.run, model, machines)
    except (PlanError, roofline.ShapeError) as error:
        return _format_row([*cells, f"no plan: {error}", "", f"{recipe.gpus + judging}", "", ""])
    memory = f"{computed.learner.total / GB:.1f} of {computed.learner_room / GB:.0f}"
    engine = f"{computed.weights / GB:.1f}, {computed.kv_room / GB:.0f}"
    hours = figure(24 * computed.days)
    return _format_row([*cells, memory, engine, f"{computed.gpus + judging}", hours, figure(computed.gpu_hours)])


def describe_pods(recipe: Recipe, judge_gpus: int) -> str:
    """Return a description of the pods of a recipe's training on a cluster."""
    on_ranks = {"shared": ", an engine next to each rank", "time_shared": ", an engine in turns with each rank"}
    beside = on_ranks.get(recipe.placement, "")
    if is_in_one_pod(recipe, recipe.cluster, judge_gpus):
        gpus = recipe.gpus + judge_gpus if recipe.cluster.gpus_per_node else 0
        return f"one, of {gpus} GPU{'' if gpus == 1 else 's'}{beside}" if gpus else "one, without GPUs"
    groups = ray_job(recipe, recipe.cluster, judge_gpus).worker_node_config
    machines = ", ".join(f"{group.replicas} of {group.group_name}" for group in groups)
    return f"a head, and of {recipe.cluster.gpus_per_node} GPUs each: {machines}{beside}"


def _format_row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
