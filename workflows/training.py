"""Train a policy on the machines that a recipe asks for.

pyflyte run workflows/training.py train --model FOLDER --mixture FILE [--data FILE] [--training FILE]
"""

from flytekit import Resources

from images import DATA
from tasks.flyte.stages import Folder, Parquet, composed
from tasks.inputs.files import DataFile, Recipe, quickstart
from tasks.inputs.fingerprints import fingerprinted
from tasks.inputs.memory_needs import judge_gpus, weights_gib
from tasks.pods import overrides
from tasks.training.cluster.pods import controller_overrides, ray_job
from tasks.training.task import Trained, train_policy
from workflows.questions import sourced_questions

FILES = quickstart()


@composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def train(model: Folder, mixture: Parquet, data: DataFile = FILES[0], training: Recipe = FILES[1]) -> Trained:
    """Train the initial checkpoint on the mixture as the recipe says.

    Args:
        model: the initial checkpoint.
        mixture: the prompts to train on.
        data: the data file, for how responses are judged.
        training: the recipe, with its machines.
    """
    holding = training, training.cluster, judge_gpus(data, training.benchmarks), weights_gib(training.model)
    return train_policy(
        model=model,
        mixture=mixture,
        config=training.run,
        verifiers=fingerprinted(data.verifiers),
        questions=[known.prompts for known in sourced_questions(training.benchmarks, overrides(data.pod))],
        asked=training.asked,
    ).with_overrides(node_name="learn", task_config=ray_job(*holding), **controller_overrides(*holding))
