"""Checks a model before anything is sampled: learner, engine and export must agree on the policy.

pyflyte run workflows/checking.py checking --model FOLDER [--training FILE]
"""

from typing import Annotated

from flytekit import Resources

from images import DATA
from tasks.flyte.stages import RESULT, Folder, Stopwatch, composed
from tasks.inputs.disk_needs import measure_stored_models
from tasks.inputs.files import Recipe, load_quickstart
from tasks.inputs.handed_on import hand_to_check, list_contents
from tasks.inputs.own_objectives import find_lacking_digests
from tasks.inputs.pinning import check_pinned
from tasks.kubernetes.pods import overrides
from tasks.model_check.options import CheckedOptions
from tasks.model_check.task import STAGE, check_model
from tasks.tables.schemas import StageSummary
from tasks.training.cluster.pods import build_checking_pod
from tasks.verifiers.config import DEFAULTS

RECIPE = load_quickstart()[1]


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def checking(model: Folder, training: Annotated[Recipe, RESULT] = RECIPE) -> StageSummary:
    """Check the model as the recipe trains it, on a machine of the recipe's `cluster`.

    Args:
        model: the initial checkpoint.
        training: the recipe. With `model_check: false`, nothing is checked.
    """
    if not training.model_check:
        return Stopwatch(STAGE).summary("not checked: model_check is false")
    check_pinned("workflows/rlvr.py rlvr", DEFAULTS, others=find_lacking_digests(training))
    pod = build_checking_pod(training, training.cluster, measure_stored_models(training))
    handed = hand_to_check(
        model=model, options=CheckedOptions.from_config(training), contents=list_contents(model)
    ).with_overrides(node_name="inputs")
    return check_model(model=handed.model, options=handed.options).with_overrides(node_name="check", **overrides(pod))
