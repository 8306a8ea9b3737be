"""Trains a policy on the machines that a recipe requests.

rlvr run train --model FOLDER --mixture FILE [--data FILE] [--training FILE]
"""

from typing import Annotated

from flytekit import Resources, workflow

from images import DATA
from tasks.flyte.stages import RESULT, Folder, Parquet, composed
from tasks.inputs.disk_needs import measure_stored_models
from tasks.inputs.files import DataFile, Recipe, load_quickstart
from tasks.inputs.handed_on import hand_to_training, list_contents
from tasks.inputs.memory_needs import judge_gpus
from tasks.inputs.own_objectives import find_lacking_digests
from tasks.inputs.pin_tasks import pin_training
from tasks.inputs.pinning import check_pinned
from tasks.kubernetes.pods import overrides
from tasks.training.cluster.pods import make_controller_overrides, ray_job
from tasks.training.task import Trained, train_policy
from workflows.questions import sourced_questions

FILES = load_quickstart()


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def compose_training(
    model: Folder,
    mixture: Parquet,
    data: Annotated[DataFile, RESULT],
    training: Annotated[Recipe, RESULT],
) -> Trained:
    """Train the initial checkpoint on the mixture according to the recipe.

    Args:
        model: the initial checkpoint.
        mixture: the prompts to train on.
        data: the data file, for its verifiers.
        training: the recipe, with its machines.
    """
    sources = [benchmark.source for benchmark in training.benchmarks]
    check_pinned("workflows/training.py train", data.verifiers, sources, others=find_lacking_digests(training))
    holding = training, training.cluster, judge_gpus(data, training.benchmarks), measure_stored_models(training, data)
    handed = hand_to_training(
        model=model,
        mixture=mixture,
        config=training.run,
        verifiers=data.verifiers,
        contents=list_contents(model, mixture),
    ).with_overrides(node_name="inputs")
    return train_policy(
        model=handed.model,
        mixture=handed.mixture,
        config=handed.config,
        verifiers=handed.verifiers,
        questions=[known.prompts for known in sourced_questions(training.benchmarks, overrides(data.pod))],
        asked=training.asked,
    ).with_overrides(node_name="learn", task_config=ray_job(*holding), **make_controller_overrides(*holding))


@workflow
def train(model: Folder, mixture: Parquet, data: DataFile = FILES[0], training: Recipe = FILES[1]) -> Trained:
    """Train the initial checkpoint on a mixture, without the rest of the pipeline."""
    pinned = pin_training(data=data, training=training).with_overrides(node_name="pin")
    return compose_training(model=model, mixture=mixture, data=pinned.data, training=pinned.training).with_overrides(
        node_name="train"
    )
