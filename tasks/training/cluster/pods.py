"""The machines of a training run: one pod where it holds all processes, otherwise a Ray cluster of nodes."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING

from pydantic import Field

from tasks.config import Config
from tasks.failures import MistakeError
from tasks.generation.config import EngineConfig
from tasks.pods import PodConfig, resources

if TYPE_CHECKING:
    from tasks.flyte.ray_job import RayJobConfig
    from tasks.training.config import TrainingConfig


class ClusterConfig(Config):
    """The machines of training on a cluster."""

    gpus_per_node: int = Field(8, ge=0)
    """GPUs of a machine; 0: training without GPUs, in one pod."""
    node: PodConfig = PodConfig(cpu=64, memory_gib=512, shared_memory_gib=64)
    """The pod of each machine with learner ranks, and of each with actors. Where all of them find room on one machine,
    it is the only one, and the cluster needs no Ray operator."""
    head: PodConfig = PodConfig(cpu=4, memory_gib=32)
    """The pod of the controller where there are several machines."""

    def gpus_of(self, engine: EngineConfig) -> int:
        """Return the number of GPUs that one engine takes on these machines; 0 where they have none."""
        return engine.gpus if self.gpus_per_node else 0


def check_cluster(config: TrainingConfig, cluster: ClusterConfig) -> None:
    """Check that every process of the run fits on the machines of `cluster`.

    Raises:
        ValueError: one would wait for ever; names the option and the GPUs or cores that are needed.
    """
    per_node, span = cluster.gpus_per_node, config.actors.engine.gpus
    if per_node and span > per_node:
        raise MistakeError(
            f"actors.engine.{config.actors.engine.parallel_sizes}: an engine lies on one machine, and one has "
            f"cluster.gpus_per_node ({per_node}) GPUs"
        )
    if _in_one_pod(config, cluster):
        needed = ceil(config.learner.ranks * config.learner.cpus + config.actors.count * config.actors.cpus)
        if cluster.node.cpu < needed:
            raise MistakeError(
                f"cluster.node.cpu ({cluster.node.cpu}): learner ranks and actors reserve {needed} cores (their number "
                "times learner.cpus and actors.cpus)"
            )


def controller_pod(config: TrainingConfig, cluster: ClusterConfig) -> PodConfig:
    """Return the pod of the task itself, which holds the learner and the actors, too, where they fit on one machine."""
    if _in_one_pod(config, cluster):
        return cluster.node.with_gpus(config.gpus if cluster.gpus_per_node else 0)
    return cluster.head.with_gpus(0)


def ray_job(config: TrainingConfig, cluster: ClusterConfig) -> RayJobConfig:
    """Return the Ray cluster of a run: machines with learner ranks, machines with actors, and the head.

    A machine holds `gpus_per_node` ranks, or as many engines as fit on it whole. Where everything fits on one machine
    the head is the only one.
    """
    from tasks.flyte.ray_job import HeadNodeConfig, RayJobConfig, WorkerNodeConfig

    groups = []
    if not _in_one_pod(config, cluster):
        engines_per_node = cluster.gpus_per_node // config.actors.engine.gpus
        node = resources(cluster.node.with_gpus(cluster.gpus_per_node))
        groups = [WorkerNodeConfig("learner", ceil(config.learner.ranks / cluster.gpus_per_node), node)]
        if config.placement != "shared":
            groups.append(WorkerNodeConfig("actors", ceil(config.actors.count / engines_per_node), node))
    return RayJobConfig(
        HeadNodeConfig(resources(controller_pod(config, cluster))), groups, shutdown_after_job_finishes=True
    )


def _in_one_pod(config: TrainingConfig, cluster: ClusterConfig) -> bool:
    return not cluster.gpus_per_node or config.gpus <= cluster.gpus_per_node
