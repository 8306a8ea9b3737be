"""Defines the machines of a training run: one pod if all processes fit into it, otherwise a Ray cluster."""

from __future__ import annotations

from math import ceil
from typing import TYPE_CHECKING, Any, Self

from pydantic import Field, model_validator

from tasks.config.fields import Arguments
from tasks.config.loading import Config
from tasks.failures import MistakeError
from tasks.generation.config import EngineConfig
from tasks.kubernetes.pod_templates import check_template_option, list_other_containers, mounts_shared_memory
from tasks.kubernetes.pods import ACCELERATOR, CORES_A_GPU, PodConfig, overrides, pod_template, resources
from tasks.machine.groups import ACTORS, LEARNER, OF_A_MACHINE, RESOURCES
from tasks.sizing.pod_sizes import HEAD_CORES, VERSIONS, compute_head_memory_gib, shared_memory_gib
from tasks.training.cluster import disk
from tasks.training.cluster.placement import Node, describe_lack, describe_shared_lack

if TYPE_CHECKING:
    from tasks.flyte.ray_job import RayJobConfig
    from tasks.recipe.run import TrainingConfig


OF_ALL_PODS = {
    "gpus": "the machines of both groups have cluster.gpus_per_node GPUs",
    "timeout_minutes": "an attempt has one limit for all of its pods: set cluster.node.timeout_minutes",
    "interruptible": "all pods of a Ray cluster are of one kind: set cluster.head.interruptible and "
    "cluster.node.interruptible, or give tolerations in the group's template",
}
"""Pod options that a group of a Ray cluster cannot set separately, each with the reason and a workaround."""


class GroupConfig(Config):
    """Options of one group of machines in a Ray cluster. They override `cluster.node`, which applies to both groups."""

    cpu: int | None = Field(None, gt=0)
    """CPU cores. null: as `cluster.node` says."""
    memory_gib: int | None = Field(None, gt=0)
    """Memory in GiB. null: as `cluster.node` says."""
    accelerator: str | None = Field(None, pattern=ACCELERATOR)
    """GPU that the machines need, as LABEL=NAME. null: as `cluster.node` says."""
    disk_gib: int | None = Field(None, gt=0)
    """Ephemeral storage in GiB. null: as `cluster.node` says."""
    shared_memory_gib: int | None = Field(None, gt=0)
    """Size of `/dev/shm`. null: as `cluster.node` says."""
    template: str | Arguments | None = None
    """Kubernetes pod template of the machines, in the same format as `cluster.node.template`, which it replaces
    completely. null: as `cluster.node` says."""

    @model_validator(mode="before")
    @classmethod
    def _is_of_one_group(cls, options: Any) -> Any:
        for name, reason in OF_ALL_PODS.items():
            if isinstance(options, dict) and name in options:
                raise ValueError(f"{name}: {reason}")
        return options

    @model_validator(mode="after")
    def _check_template(self) -> Self:
        check_template_option(self.template)
        return self

    @property
    def given(self) -> dict[str, Any]:
        """The options that are set, by name."""
        return {name: value for name, value in self if value is not None}


class ClusterConfig(Config):
    """The machines for training on a cluster."""

    gpus_per_node: int = Field(8, ge=0)
    """Number of GPUs of a machine. If 0, training runs without GPUs, in one pod."""
    node: PodConfig = PodConfig()
    """The pod of each machine with learner ranks or actors. If all of them fit on one machine, it is the only machine,
    and the cluster does not need the Ray operator. The default is 8 cores and 64 GiB per GPU. Without GPUs, it is the
    cores that ranks and actors reserve, and 8 GiB for each of them."""
    learner: GroupConfig = GroupConfig()
    """Options of the machines with learner ranks that override `node`. Refused if training is one pod, because `node`
    describes it."""
    actors: GroupConfig = GroupConfig()
    """Options of the machines with actors that override `node`. Refused if training is one pod, or if every engine
    shares a GPU with a learner rank."""
    head: PodConfig = PodConfig()
    """The pod of the controller if there are several machines. Responses are verified on it, by as many processes as it
    has cores. The default is 16 cores, and the memory for the steps between two checkpoints that `plan` prints."""
    price_per_gpu_hour: float | None = Field(None, ge=0)
    """Price of a GPU per hour, in any currency. `plan` and the report use it to compute the cost of a run. The judge's
    prices (`verifiers.judge.input_price`, `output_price`) must be in the same currency. null: they only print GPU
    hours."""

    def count_engine_gpus(self, engine: EngineConfig) -> int:
        """Return the number of GPUs that one engine uses on these machines, or 0 if they have none."""
        return engine.gpus if self.gpus_per_node else 0

    def build_machine(self, group: str) -> PodConfig:
        """Return the pod of each machine in a group of a Ray cluster, which is `node` with the group's options."""
        return self.node.model_copy(update=self._groups[group].given)

    def format_option_path(self, group: str, name: str) -> str:
        """Return the path of the option that sets `name` for a group's machines."""
        return f"cluster.{group if name in self._groups[group].given else 'node'}.{name}"

    @property
    def _groups(self) -> dict[str, GroupConfig]:
        return {LEARNER: self.learner, ACTORS: self.actors}


def check_cluster(config: TrainingConfig, cluster: ClusterConfig) -> None:
    """Check that every process of the run fits on the machines of `cluster`.

    Raises:
        ValueError: a process would wait forever. The message names the option and the GPUs or cores that are needed.
    """
    per_node, span = cluster.gpus_per_node, config.actors.engine.gpus
    if per_node and span > per_node:
        raise MistakeError(
            f"actors.engine.{config.actors.engine.parallel_sizes}: an engine runs on one machine, and one has "
            f"cluster.gpus_per_node ({per_node}) GPUs"
        )
    if config.takes_turns and not per_node:
        raise MistakeError(
            "placement = time_shared: learner and engines take turns on GPUs, and cluster.gpus_per_node is 0"
        )
    if not is_in_one_pod(config, cluster):
        _check_ray_cluster(cluster)
        _check_cores(config, cluster)
    else:
        if not per_node:
            _check_groups(config, cluster, 0)
        needed = _count_reserved_cores(config)
        if cluster.node.cpu is not None and cluster.node.cpu < needed:
            raise MistakeError(
                f"cluster.node.cpu ({cluster.node.cpu}): learner ranks and actors reserve {needed} cores (their number "
                "times learner.cpus and actors.cpus)"
            )


def _check_ray_cluster(cluster: ClusterConfig) -> None:
    """Check that the options in `cluster` can be applied to the pods of a Ray cluster.

    Flyte creates one pod for the task, copies it for head and workers, and overrides each copy with its inline options.
    A template given by name and `interruptible` apply to that one pod, and so to all copies.

    Raises:
        ValueError: an option would not apply to its pods, or would also apply to others.
    """
    head, node = cluster.head, cluster.node
    if head.interruptible != node.interruptible:
        raise MistakeError(
            f"cluster.head.interruptible ({head.interruptible}) and cluster.node.interruptible ({node.interruptible}): "
            "all pods of a Ray cluster are of one kind: set both, or give the workers' tolerations in "
            "cluster.node.template"
        )
    _check_ray_pod(head, accelerator="cluster.head.accelerator", template="cluster.head.template")
    for group in RESOURCES:
        pod = cluster.build_machine(group)
        accelerator, template = (cluster.format_option_path(group, name) for name in ("accelerator", "template"))
        names = [given.template if isinstance(given.template, str) else None for given in (head, pod)]
        if names[0] != names[1]:
            raise MistakeError(
                f"cluster.head.template ({names[0]}) and {template} ({names[1]}): by name, all pods of a Ray "
                "cluster have the same template: give both that name, or one of them inline"
            )
        _check_ray_pod(pod, accelerator=accelerator, template=template)
        if isinstance(pod.template, dict) and pod.shared_memory_gib and mounts_shared_memory(pod.template):
            raise MistakeError(
                f"{template} mounts a volume on /dev/shm, and "
                f"{cluster.format_option_path(group, 'shared_memory_gib')} another: "
                "leave one out"
            )


def _check_ray_pod(pod: PodConfig, *, accelerator: str, template: str) -> None:
    """Check that a pod of a Ray cluster can have its accelerator and its inline template.

    `accelerator` and `template` are the names of the two options, for the message.

    Raises:
        ValueError: it cannot have one of them.
    """
    if pod.accelerator is not None and pod.node_label is None:
        raise MistakeError(
            f"{accelerator} = {pod.accelerator!r}: Flyte does not apply its label to the machines of a Ray cluster: "
            f"write LABEL={pod.accelerator} with the label that your nodes have (kubectl get nodes --show-labels), "
            "such as cloud.google.com/gke-accelerator"
        )
    if isinstance(pod.template, dict) and (extra := list_other_containers(pod.template)):
        raise MistakeError(
            f"{template}: container {extra[0]!r}: Flyte adds no containers to the machines of a Ray cluster; give them "
            "in a template by name"
        )


def _check_cores(config: TrainingConfig, cluster: ClusterConfig) -> None:
    """Check that a machine of a Ray cluster has enough cores for its processes.

    Raises:
        ValueError: it does not, and a process would wait forever.
    """
    ranks = min(config.learner.ranks, cluster.gpus_per_node)
    engines = min(config.actors.count, cluster.gpus_per_node // config.actors.engine.gpus)
    of_ranks, of_engines = ranks * config.learner.cpus, engines * config.actors.cpus
    reserved = {LEARNER: of_ranks, ACTORS: of_engines}
    if config.shares_gpus:
        reserved = {LEARNER: of_ranks + of_engines}
    for group, needed in reserved.items():
        cpu = cluster.build_machine(group).cpu
        if cpu is not None and cpu < needed:
            raise MistakeError(
                f"{cluster.format_option_path(group, 'cpu')} ({cpu}): a machine of the group {group} needs "
                f"{needed:g} cores for "
                "its processes (the number of its ranks and engines times learner.cpus and actors.cpus)"
            )


def _check_groups(config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int) -> None:
    """Check that every group of machines with options exists.

    Raises:
        ValueError: a group does not exist, and its options would be ignored.
    """
    if is_in_one_pod(config, cluster, judge_gpus):
        machines, instead = {LEARNER: 0, ACTORS: 0}, "training is one pod, which cluster.node describes"
    else:
        machines = dict(zip((LEARNER, ACTORS), _count_machines(config, cluster, judge_gpus), strict=True))
        instead = f"placement = {config.placement} puts engines on the machines of cluster.learner"
    for group, count in machines.items():
        if not count and (given := getattr(cluster, group).given):
            raise MistakeError(
                f"cluster.{group}.{next(iter(given))}: {instead}: give the option there, or leave it out"
            )


def make_controller_overrides(
    config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int = 0, models: disk.StoredModels | None = None
) -> dict[str, Any]:
    """Return the arguments of flytekit's `with_overrides` for the pod of the task.

    For a Ray cluster, `ray_job` returns the inline options of its pods. The cluster is a single attempt, with the
    shorter of the two time limits.
    """
    pod = build_controller_pod(config, cluster, judge_gpus, models)
    is_one = is_in_one_pod(config, cluster, judge_gpus)
    if not is_one:
        limits = [given.timeout_minutes for given in (cluster.head, cluster.node) if given.timeout_minutes]
        # The head gets its disk from `ray_job`. A disk set here would also apply to the job's submitter.
        pod = pod.model_copy(update={"timeout_minutes": min(limits, default=None), "disk_gib": None})
    return overrides(pod, inline=is_one)


def build_controller_pod(
    config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int = 0, models: disk.StoredModels | None = None
) -> PodConfig:
    """Return the pod of the task, which also runs the learner and the actors if they fit on one machine.

    Args:
        config: the recipe's training options.
        cluster: the recipe's machines.
        judge_gpus: number of GPUs of the judge or reward model that the run serves.
        models: the sizes of the run's models, if they are known.
    """
    if not is_in_one_pod(config, cluster, judge_gpus):
        memory = compute_head_memory_gib(config, cluster.head.cpu or HEAD_CORES)
        need = disk.head(config, models) if models else None
        # The head needs no shared memory for objects: Ray uses it only if its entire object store fits.
        return disk.add_disk(cluster.head, need).fill_defaults(
            0, cpu=HEAD_CORES, memory_gib=memory, shared_memory_gib=None
        )
    need = disk.estimate_one_pod(config, models, gpus=bool(cluster.gpus_per_node)) if models else None
    if not cluster.gpus_per_node:
        return disk.add_disk(cluster.node, need).fill_defaults(0, **_estimate_amounts_without_gpus(config, models))
    return _build_machine(
        config, cluster.node, config.gpus + judge_gpus, models, need, cores=_count_reserved_cores(config)
    )


def build_checking_pod(
    config: TrainingConfig, cluster: ClusterConfig, models: disk.StoredModels | None = None
) -> PodConfig:
    """Return the pod that checks the model, which is a machine of `cluster` with the GPUs of one engine."""
    gpus = cluster.count_engine_gpus(config.actors.engine)
    need = disk.estimate_model_check(config, models, gpus=bool(gpus)) if models else None
    if not gpus:
        return disk.add_disk(cluster.node, need).fill_defaults(0, **_estimate_amounts_without_gpus(config, models))
    return _build_machine(config, cluster.node, gpus, models, need)


def _build_machine(
    config: TrainingConfig,
    pod: PodConfig,
    gpus: int,
    models: disk.StoredModels | None,
    need: disk.DiskNeed | None,
    cores: int = 0,
) -> PodConfig:
    """Return `pod` as a machine with `gpus` GPUs, the disk that it needs, and by default at least `cores` cores."""
    gpus = gpus if pod.gpus is None else pod.gpus
    moved = models.weights_gib if models and not config.lora else None
    return disk.add_disk(pod, need).fill_defaults(
        gpus, cpu=max(CORES_A_GPU * gpus, cores), shared_memory_gib=shared_memory_gib(gpus, moved)
    )


def _estimate_amounts_without_gpus(config: TrainingConfig, models: disk.StoredModels | None) -> dict[str, int]:
    """Return the resources of a machine without GPUs, by option name."""
    processes = config.learner.ranks + config.actors.count
    moved = models.weights_gib if models and not config.lora else 0
    widening = 1 if config.learner.dtype == "bfloat16" else 2  # `auto` is float32 on some processors
    return {
        "cpu": max(2, _count_reserved_cores(config)),
        "memory_gib": 8 * processes,
        "shared_memory_gib": max(1, ceil(VERSIONS * widening * moved)),
    }


def _count_reserved_cores(config: TrainingConfig) -> int:
    """Return the cores that learner ranks and actors reserve in Ray."""
    return ceil(config.learner.ranks * config.learner.cpus + config.actors.count * config.actors.cpus)


def ray_job(
    config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int = 0, models: disk.StoredModels | None = None
) -> RayJobConfig:
    """Return the Ray cluster of a run: machines with learner ranks, machines with actors, and the head.

    A machine has `gpus_per_node` ranks, or as many engines as fit on it without splitting one. The judge uses GPUs that
    these leave free, or an additional machine in the group of actors. Each machine has the Ray resource of its group,
    which a run's placement uses. If everything fits on one machine, the head is the only machine.
    """
    from tasks.flyte.ray_job import HeadNodeConfig, RayJobConfig, WorkerNodeConfig

    controller = build_controller_pod(config, cluster, judge_gpus, models)
    if is_in_one_pod(config, cluster, judge_gpus):
        return RayJobConfig(HeadNodeConfig(resources(controller)), [], shutdown_after_job_finishes=True)
    return RayJobConfig(
        HeadNodeConfig(resources(controller), pod_template(controller, shared_memory=True)),
        [
            WorkerNodeConfig(
                name,
                replicas,
                resources(pod),
                pod_template(pod, shared_memory=True),
                {RESOURCES[name]: OF_A_MACHINE},
            )
            for name, (replicas, pod) in build_worker_pods(config, cluster, judge_gpus, models).items()
        ],
        shutdown_after_job_finishes=True,
    )


def build_worker_pods(
    config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int = 0, models: disk.StoredModels | None = None
) -> dict[str, tuple[int, PodConfig]]:
    """Return the number of machines and their pod for each nonempty group of a Ray cluster, by group name."""
    per_node = cluster.gpus_per_node
    needs = {
        LEARNER: disk.estimate_learner_machine(config, models, per_node) if models else None,
        ACTORS: disk.estimate_actors_machine(models) if models else None,
    }
    replicas = dict(zip((LEARNER, ACTORS), _count_machines(config, cluster, judge_gpus), strict=True))
    return {
        name: (count, _build_machine(config, cluster.build_machine(name), per_node, models, needs[name]))
        for name, count in replicas.items()
        if count
    }


def _count_machines(config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int) -> tuple[int, int]:
    """Return the number of machines with learner ranks, and with actors and, if there is no other room, a judge.

    Actors that share the learner's GPUs need no additional machines.

    The judge uses GPUs that the ranks leave free. If these are too few, Ray places it on an empty machine of the
    actors, if there is one. Another machine is needed if the engines of that machine then do not fit any more.
    """
    per_node, shared = cluster.gpus_per_node, config.shares_gpus
    learner = ceil(config.learner.ranks / per_node)
    actors = 0 if shared else ceil(config.actors.count / (per_node // config.actors.engine.gpus))
    nodes = []
    for group, count in ((LEARNER, learner), (ACTORS, actors)):
        cores = float(_build_machine(config, cluster.build_machine(group), per_node, None, None).cpu or 0)
        machine = {"GPU": float(per_node), "CPU": cores, RESOURCES[group]: OF_A_MACHINE}
        nodes += [Node(f"{group} {index}", dict(machine)) for index in range(count)]
    need = (
        describe_shared_lack(config, nodes, judge_gpus)
        if shared
        else describe_lack(config, nodes, config.actors.count, judge_gpus)
    )
    return learner, actors + bool(judge_gpus and need)


def is_in_one_pod(config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int = 0) -> bool:
    """Return whether learner, actors and a judge with `judge_gpus` GPUs fit on one machine."""
    return not cluster.gpus_per_node or config.gpus + judge_gpus <= cluster.gpus_per_node


def check_judge_gpus(config: TrainingConfig, cluster: ClusterConfig, judge_gpus: int) -> None:
    """Check that the judge and reward models that a run serves fit on one machine, and that its pods are possible.

    Raises:
        ValueError: they do not fit, or they require a Ray cluster instead of one pod and an option of its pods cannot
            be applied, or a group without machines has options.
    """
    per_node = cluster.gpus_per_node
    if per_node and judge_gpus > per_node:
        raise MistakeError(
            f"verifiers.judge and reward_models: their models need {judge_gpus} GPUs, and a machine has "
            f"cluster.gpus_per_node ({per_node})"
        )
    if not is_in_one_pod(config, cluster, judge_gpus):
        _check_ray_cluster(cluster)
    _check_groups(config, cluster, judge_gpus)
