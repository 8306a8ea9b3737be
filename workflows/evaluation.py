"""Evaluate two policies on the same held-out prompts, and compute the gain of the second.

pyflyte run workflows/evaluation.py evaluation --model FOLDER --policy FOLDER --heldout FILE [--evaluation FILE]
"""

from typing import NamedTuple

from flytekit import Resources

from images import DATA
from tasks.evaluation.spec import EvaluationSpec, check_of_two
from tasks.evaluation.task import compare_policies, evaluate_policy
from tasks.flyte.stages import Folder, Parquet, composed
from tasks.inputs.files import DataFile, Recipe, quickstart
from tasks.inputs.memory_needs import judge_gpus, weights_gib
from tasks.inputs.preflight import fingerprinted
from tasks.pods import overrides
from tasks.tables.schemas import StageSummary

FILES = quickstart()


class BeforeAndAfter(NamedTuple):
    """The outputs of an evaluation; tables have the columns of `tasks.tables.schemas`."""

    before: Parquet
    after: Parquet
    evaluation: Parquet
    set_aside_evaluation: Parquet
    evaluating_before: StageSummary
    evaluating_after: StageSummary
    comparing: StageSummary


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def evaluation(
    model: Folder,
    policy: Folder,
    heldout: Parquet,
    data: DataFile = FILES[0],
    training: Recipe = FILES[1],
    evaluation: EvaluationSpec = FILES[2],
) -> BeforeAndAfter:
    """Sample and score both policies, and compute the gain with its interval.

    Args:
        model: the initial checkpoint, which is also the judge where `data` says so.
        policy: the trained policy.
        heldout: prompts that neither was trained on.
        data: the data file, for how responses are judged.
        training: the recipe, whose `cluster` decides whether pods have GPUs.
        evaluation: how the policies are sampled.
    """
    check_of_two(evaluation)
    verifiers = fingerprinted(data.verifiers)
    gpus = training.cluster.gpus_of(evaluation.engine)
    gpus += judge_gpus(data) if training.cluster.gpus_per_node else 0  # responses are judged while others are sampled
    pod = overrides(evaluation.pod.sized(gpus, weights_gib=weights_gib(training.model)))
    before, after = (
        evaluate_policy(
            policy=checkpoint, prompts=heldout, config=evaluation, initial=model, verifiers=verifiers
        ).with_overrides(node_name=name, **pod)
        for name, checkpoint in (("before", model), ("after", policy))
    )
    compared = compare_policies(before=before.rollouts, after=after.rollouts, prompts=heldout).with_overrides(
        node_name="compare"
    )
    return BeforeAndAfter(
        before=before.rollouts,
        after=after.rollouts,
        evaluation=compared.evaluation,
        set_aside_evaluation=before.set_aside,
        evaluating_before=before.summary,
        evaluating_after=after.summary,
        comparing=compared.summary,
    )
