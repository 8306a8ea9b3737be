"""A launch plan for every recipe: the pipeline with the recipe, its data and its evaluation, launched by name.

One more, `cluster_check`, checks what a recipe's run will need; it is launched with `--training`.

The executions of a launch plan carry the names of its three files as labels, and so do their pods.

In a module of its own: only registering loads it, since each one takes a tenth of a second to make.
"""

from flytekit import LaunchPlan
from flytekit.models.common import Labels

from tasks.inputs.files import RECIPES, quickstart, with_companions
from workflows.cluster_check import cluster_check
from workflows.rlvr import rlvr

FILES = ("data", "training", "evaluation")
"""Names of the inputs that are files of the user."""


def _launch_plan(recipe: str) -> LaunchPlan:
    data, training, evaluation = with_companions(recipe)
    return LaunchPlan.get_or_create(
        rlvr,
        f"rlvr_{recipe}",
        default_inputs={"data": data, "training": training, "evaluation": evaluation},
        labels=Labels({"recipe": recipe, "data": training.data, "evaluation": training.evaluation}),
    )


LAUNCH_PLANS = [
    *(_launch_plan(path.stem) for path in sorted(RECIPES.glob("*.yaml"))),
    LaunchPlan.get_or_create(
        cluster_check, "cluster_check", default_inputs=dict(zip(FILES, quickstart(), strict=True))
    ),
]
