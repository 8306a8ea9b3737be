"""Defines a launch plan for every recipe: the pipeline with the recipe, its data and its evaluation, launched by name.

The additional launch plan `cluster_check` checks what a recipe's run will need. It is launched with `--training`.

The executions of a launch plan, and their pods, have the names of its three files as labels.

This is a separate module that is only loaded for registration, because each launch plan takes a tenth of a second to
create.
"""

from flytekit import LaunchPlan
from flytekit.models.common import Labels

from tasks.inputs.files import RECIPES, load_quickstart, load_recipe_files
from workflows.cluster_check import cluster_check
from workflows.rlvr import rlvr

FILES = ("data", "training", "evaluation")
"""Names of the inputs that are YAML files of the user."""


def _launch_plan(recipe: str) -> LaunchPlan:
    data, training, evaluation = load_recipe_files(recipe)
    return LaunchPlan.get_or_create(
        rlvr,
        f"rlvr_{recipe}",
        default_inputs={"data": data, "training": training, "evaluation": evaluation},
        labels=Labels({"recipe": recipe, "data": training.data, "evaluation": training.evaluation}),
    )


LAUNCH_PLANS = [
    *(_launch_plan(path.stem) for path in sorted(RECIPES.glob("*.yaml"))),
    LaunchPlan.get_or_create(
        cluster_check, "cluster_check", default_inputs=dict(zip(FILES, load_quickstart(), strict=True))
    ),
]
