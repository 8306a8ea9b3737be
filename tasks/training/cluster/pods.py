"""The machines of a training run: one pod where it holds all processes, otherwise a Ray cluster of nodes."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any

from pydantic import Field

from tasks.config import Config
from tasks.failures import MistakeError
from tasks.generation.config import EngineConfig
from tasks.pod_templates import others
from tasks.pods import PodConfig, overrides, pod_template, resources

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
    if not _in_one_pod(config, cluster):
        _check_ray_cluster(cluster)
    else:
        needed = ceil(config.learner.ranks * config.learner.cpus + config.actors.count * config.actors.cpus)
        if cluster.node.cpu < needed:
            raise MistakeError(
                f"cluster.node.cpu ({cluster.node.cpu}): learner ranks and actors reserve {needed} cores (their number "
                "times learner.cpus and actors.cpus)"
            )


def _check_ray_cluster(cluster: ClusterConfig) -> None:
    """Check that a Ray cluster's pods can have what `cluster` gives them.

    Flyte makes one pod for the task, copies it for head and workers, and lays the inline part of each over its copy. A
    template by name and `interruptible` are of that one pod.

    Raises:
        ValueError: an option would not reach the pods that it is of, or reach others.
    """
    head, node = cluster.head, cluster.node
    names = [pod.template if isinstance(pod.template, str) else None for pod in (head, node)]
    if names[0] != names[1]:
        raise MistakeError(
            f"cluster.head.template ({names[0]}) and cluster.node.template ({names[1]}): by name, all pods of a Ray "
            "cluster have the same template: give both that name, or one of them inline"
        )
    if head.interruptible != node.interruptible:
        raise MistakeError(
            f"cluster.head.interruptible ({head.interruptible}) and cluster.node.interruptible ({node.interruptible}): "
            "all pods of a Ray cluster are of one kind: set both, or give the workers' tolerations in "
            "cluster.node.template"
        )
    for name, pod in (("head", head), ("node", node)):
        if pod.accelerator is not None and pod.node_label is None:
            raise MistakeError(
                f"cluster.{name}.accelerator = {pod.accelerator!r}: Flyte gives its label to no machine of a Ray "
                f"cluster: write LABEL={pod.accelerator} with the label that your nodes have (kubectl get nodes "
                "--show-labels), such as cloud.google.com/gke-accelerator"
            )
        if isinstance(pod.template, dict) and (extra := others(pod.template)):
            raise MistakeError(
                f"cluster.{name}.template: container {extra[0]!r}: Flyte adds no containers to the machines of a Ray "
                "cluster; give them in a template by name"
            )


def controller_overrides(config: TrainingConfig, cluster: ClusterConfig) -> dict[str, Any]:
    """Return the arguments of flytekit's `with_overrides` for the task's own pod.

    Of a Ray cluster, `ray_job` has what its pods are given inline. It is one attempt, which ends after the shorter of
    the two time limits.
    """
    pod, is_one = controller_pod(config, cluster), _in_one_pod(config, cluster)
    if not is_one:
        limits = [given.timeout_minutes for given in (cluster.head, cluster.node) if given.timeout_minutes]
        pod = pod.model_copy(update={"timeout_minutes": min(limits, default=None)})
    return overrides(pod, inline=is_one)


def controller_pod(config: TrainingConfig, cluster: ClusterConfig) -> PodConfig:
    """Return the pod of the task itself, which holds the learner and the actors, too, where they fit on one machine."""
    if _in_one_pod(config, cluster):
        return cluster.node.with_gpus(_gpus(config) if cluster.gpus_per_node else 0)
    return cluster.head.with_gpus(0)


def ray_job(config: TrainingConfig, cluster: ClusterConfig) -> RayJobConfig:
    """Return the Ray cluster of a run: machines with learner ranks, machines with actors, and the head.

    A machine holds `gpus_per_node` ranks, or as many engines as fit on it whole. Where everything fits on one machine
    the head is the only one.
    """
    from tasks.flyte.ray_job import HeadNodeConfig, RayJobConfig, WorkerNodeConfig

    if _in_one_pod(config, cluster):
        head, groups = HeadNodeConfig(resources(controller_pod(config, cluster))), []
    else:
        engines_per_node = cluster.gpus_per_node // config.actors.engine.gpus
        controller, pod = controller_pod(config, cluster), cluster.node.with_gpus(cluster.gpus_per_node)
        node, template = resources(pod), pod_template(pod, shared_memory=True)
        head = HeadNodeConfig(resources(controller), pod_template(controller, shared_memory=True))
        groups = [
            WorkerNodeConfig("learner", ceil(config.learner.ranks / cluster.gpus_per_node), node, template),
            WorkerNodeConfig("actors", ceil(config.actors.count / engines_per_node), node, template),
        ]
    return RayJobConfig(head, groups, shutdown_after_job_finishes=True)


def _gpus(config: TrainingConfig) -> int:
    return config.learner.ranks + config.actors.count * config.actors.engine.gpus


def _in_one_pod(config: TrainingConfig, cluster: ClusterConfig) -> bool:
    return not cluster.gpus_per_node or _gpus(config) <= cluster.gpus_per_node
