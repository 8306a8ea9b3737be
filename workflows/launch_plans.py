"""For each recipe the pipeline with it, its data and its evaluation, to be launched by name.

In a module of its own: only registering loads it, since each one takes a tenth of a second to make.
"""

from flytekit import LaunchPlan

from tasks.spec import RECIPES, with_companions
from workflows.rlvr import rlvr

LAUNCH_PLANS = [
    LaunchPlan.get_or_create(
        rlvr,
        f"rlvr_{path.stem}",
        default_inputs=dict(zip(("data", "training", "evaluation"), with_companions(path.stem), strict=True)),
    )
    for path in sorted(RECIPES.glob("*.yaml"))
    if not path.stem.endswith("_evaluation")
]
