"""For each recipe the pipeline with it, to be launched by name with a data file of one's own.

In a module of its own: only registering loads it, since each one takes a tenth of a second to make.
"""

from flytekit import LaunchPlan

from tasks.config import load_yaml
from tasks.spec import RECIPES, Recipe
from workflows.rlvr import rlvr

LAUNCH_PLANS = [
    LaunchPlan.get_or_create(rlvr, f"rlvr_{path.stem}", default_inputs={"training": load_yaml(Recipe, path)})
    for path in sorted(RECIPES.glob("*.yaml"))
    if not path.stem.endswith("_evaluation")
]
