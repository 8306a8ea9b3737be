"""Checks in minutes that a cluster has what a recipe needs: images, GPUs, network, storage, judge, secrets.

rlvr doctor cluster-check [--training FILE] [--data FILE]
"""

from flytekit import Resources, workflow

from images import DATA
from tasks.cluster_check.task import check_machines, check_pod, conclude
from tasks.flyte.stages import uncached_composed
from tasks.inputs.disk_needs import measure_stored_models
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.memory_needs import judge_gpus
from tasks.kubernetes.pods import overrides
from tasks.tables.schemas import StageSummary
from tasks.training.cluster.pods import make_controller_overrides, ray_job

FILES = load_quickstart()


@uncached_composed(container_image=DATA, requests=Resources(cpu="1", mem="1Gi"))
def check_for(data: DataFile, training: Recipe) -> StageSummary:
    """Check the pods that the recipe's run will have: the machines of training, and one pod of the data stages.

    Args:
        data: the data file, for its verifiers and its pods.
        training: the recipe, with its machines.
    """
    holding = training, training.cluster, judge_gpus(data, training.benchmarks), measure_stored_models(training, data)
    machines = check_machines(data=data, training=training).with_overrides(
        node_name="machines", task_config=ray_job(*holding), **make_controller_overrides(*holding)
    )
    pod = check_pod(data=data, training=training).with_overrides(node_name="pod", **overrides(data.pod))
    return conclude(results=[pod, machines]).with_overrides(node_name="conclude")


@workflow
def cluster_check(
    data: DataFile = FILES[0], training: Recipe = FILES[1], evaluation: EvaluationFile = FILES[2]
) -> StageSummary:
    """Check what the recipe's run will need. Prints one message per check, and fails if a check failed.

    Args:
        data: the data file.
        training: the recipe, with its machines.
        evaluation: the evaluation file, which every launch includes. It is not checked.
    """
    return check_for(data=data, training=training)
