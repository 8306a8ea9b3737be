"""Plans which nodes of a cluster with GPUs have the learner ranks and engines; `reservations` reserves them with Ray.

    node A              node B              node C                node D
    ┌─────────────────┐ ┌─────────────────┐ ┌─────────┬─────────┐ ┌─────────┬─────────┐
    │ ranks 0 to 7    │ │ ranks 8 to 15   │ │engine 0 │engine 1 │ │engine 2 │  free   │
    └─────────────────┘ └─────────────────┘ └─────────┴─────────┘ └─────────┴─────────┘
    └── bundle 0 ─────┘ └── bundle 1 ─────┘ └─ one ───┘ group of one bundle for every engine
    └── the learner's group ──────────────┘

A bundle is an amount of GPUs and CPUs on one node. The learner has one placement group, with one bundle per node for
the ranks on it. Every engine has a separate group, so that a lost node costs only the engines on it.

If ranks and engines share GPUs, at the same time or by time sharing (`placement: shared`, `time_shared`), bundle i of
one group has a GPU for rank i and engine i.

A judge or reward model that the run serves also has a group of one bundle, with its GPUs.

If machines are divided into groups (`tasks.machine.groups`), every bundle requests the resource of one group. Ranks,
and engines that share their GPUs, are placed on machines `learner`, and other engines on machines `actors`. After a
machine is lost, its processes wait for a new machine of the group. The judge is placed on a machine `learner` if the
ranks leave room there, because nothing else would use it, and otherwise on a machine `actors`.

The learner has priority, at the start and after a lost node: engines get no resources until every rank runs. In the
learner's group, Ray replaces the bundles of the lost node, and the other bundles stay reserved.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field

from tasks.machine.gpus import list_gpu_names
from tasks.machine.groups import ACTORS, LEARNER, RESOURCES, SHARE, are_grouped, find_group
from tasks.recipe.gpu_shares import SMALLEST_LEARNER, PlacementOption, compute_rank_share
from tasks.recipe.learner import LearnerConfig
from tasks.recipe.run import ActorsConfig, TrainingConfig
from tasks.sizing.gpu_memory_fit import find_fitting_placements
from tasks.sizing.roofline import GB, Architecture, Gpu, find_gpu
from tasks.training.cluster.nodes import list_living_nodes

logger = logging.getLogger(__name__)

GPU_KIND = "accelerator_type:"
"""Prefix of Ray's resource for the GPU type of a node, as in `accelerator_type:H100`."""

OF_SEVERAL_SIZES = frozenset({"A100"})
"""Ray's names for GPUs that exist with less memory than the data sheet of the same name has."""

Bundle = dict[str, float]
"""Amounts of resources on one node, by Ray's names `GPU` and `CPU`, and the name of a group's resource. None is 0."""


@dataclass
class Node:
    """A node of the cluster, and its resources that no planned bundle uses.

    Attributes:
        name: address of the node.
        free: free resources of the node, by Ray's names.
    """

    name: str
    free: dict[str, float]

    def holds(self, bundle: Bundle) -> bool:
        """Return True if the free resources suffice for a bundle."""
        return all(self.free.get(kind, 0) >= amount for kind, amount in bundle.items())

    def compute_share_left(self, bundle: Bundle) -> float:
        """Return the share of the free resources that a bundle would leave, summed over kinds of resources."""
        return sum(1 - amount / self.free[kind] for kind, amount in bundle.items())

    def __str__(self) -> str:
        of_group = f" of the group {group}" if (group := find_group(self.free)) else ""
        free = self.free
        return f"node {self.name}{of_group} has {free.get('GPU', 0):g} GPUs and {free.get('CPU', 0):g} CPUs free"


@dataclass
class Plan:
    """The bundles of a run on the nodes of a cluster, as Ray will place them.

    Attributes:
        ranks: number of ranks in each bundle of the learner.
        learner: number of these bundles that fit.
        judge: group of the machine on which the judge that the run serves fits as well, or None if it does not fit, or
            if the run serves no judge. If machines are not divided into groups, any group means any machine.
        engines: number of engines that fit in addition, or 0 if the learner does not fit.
        nodes: the nodes, with the resources that are then free.
    """

    ranks: list[int]
    learner: int = 0
    judge: str | None = None
    engines: int = 0
    nodes: list[Node] = field(default_factory=list)

    @property
    def holds_learner(self) -> bool:
        """Return True if all bundles of the learner fit."""
        return self.learner == len(self.ranks)


def list_cluster_nodes() -> list[Node]:
    """Return the living nodes of the Ray cluster with all their resources."""
    return [Node(node["NodeManagerAddress"], dict(node["Resources"])) for node in list_living_nodes()]


def find_cluster_gpu() -> Gpu | None:
    """Return the datasheet of the cluster's GPUs, or None if it is not known or ambiguous.

    On one machine the driver has their full names, and otherwise Ray has a part of them.
    """
    nodes = list_cluster_nodes()
    names = {kind.partition(":")[2] for node in nodes for kind in node.free if kind.startswith(GPU_KIND)}
    if names and len(nodes) == 1:
        # Ray calls an A100 of 40 GB and one of 80 GB the same
        names = set(list_gpu_names()) or names
    return find_gpu(names.pop()) if len(names) == 1 and not names & OF_SEVERAL_SIZES else None


def limit_to_group(bundle: Bundle, group: str, nodes: list[Node]) -> Bundle:
    """Return a bundle that Ray places on a machine of a group, or the unchanged bundle if `nodes` have no groups."""
    return bundle | {RESOURCES[group]: SHARE} if are_grouped(node.free for node in nodes) else bundle


def make_rank_bundle(learner: LearnerConfig, ranks: int) -> Bundle:
    """Return the bundle of this number of learner ranks on one node."""
    return _make_bundle(ranks, ranks * learner.cpus)


def make_rank_resources(config: TrainingConfig, nodes: list[Node], *, gpu: bool) -> Bundle:
    """Return the resources that one learner rank reserves on one of these nodes, with GPUs or without."""
    return limit_to_group(make_rank_bundle(config.learner, 1) if gpu else {"CPU": config.learner.cpus}, LEARNER, nodes)


def make_engine_bundle(actors: ActorsConfig) -> Bundle:
    """Return the bundle of one engine."""
    return _make_bundle(actors.engine.gpus, actors.cpus)


def make_shared_bundle(config: TrainingConfig) -> Bundle:
    """Return the bundle of one learner rank and the engine that shares its GPU."""
    return _make_bundle(1, config.learner.cpus + config.actors.cpus)


def judge_bundle(gpus: int) -> Bundle:
    """Return the bundle of a judge on this number of GPUs."""
    return _make_bundle(gpus, 0)


def _make_bundle(gpus: float, cpus: float) -> Bundle:
    return {"GPU": gpus, "CPU": cpus} if cpus else {"GPU": gpus}


def resolve_auto_placement(
    config: TrainingConfig, gpus: float, model: Architecture | None = None, gpu: Gpu | None = None
) -> TrainingConfig:
    """Return `config` with `auto` placement resolved, and the share of a GPU's memory that an engine uses.

    Args:
        config: the run's options.
        gpus: number of GPUs in the cluster. If 0, nothing is shared.
        model: shape of the policy, or None if it is not known.
        gpu: datasheet of the GPUs, or None if it is not known.
    """
    placement = config.placement
    if not gpus and placement != "time_shared":  # this needs a GPU
        placement = "apart"
    elif placement == "auto":
        placement = "apart" if gpus >= config.gpus else _choose_on_one_gpu(config, model, gpu)
    config = config.model_copy(update={"placement": placement})
    engine = config.actors.engine.model_copy(update={"gpu_memory_utilization": config.engine_share})
    return config.model_copy(update={"actors": config.actors.model_copy(update={"engine": engine})})


def _choose_on_one_gpu(config: TrainingConfig, model: Architecture | None, gpu: Gpu | None) -> PlacementOption:
    """Return the placement if there are too few GPUs for `apart`: `shared`, or `time_shared` if only that may fit.

    If a learner that shares its GPU would have too little memory, return `apart` nevertheless.
    """
    engine = config.actors.engine
    can_share = config.as_many_engines_as_ranks and compute_rank_share("shared", engine.gpu_memory_utilization)
    if model and gpu and config.as_many_engines_as_ranks:
        placements = find_fitting_placements(config, model, gpu)
        if "time_shared" in placements and "shared" not in placements:
            logger.warning(
                "placement = auto: engine and learner rank do not fit on a GPU of %.0f GB at the same time: they take "
                "turns (placement = time_shared)",
                gpu.memory / GB,
            )
            return "time_shared"
    return "shared" if can_share >= SMALLEST_LEARNER else "apart"


def plan(config: TrainingConfig, nodes: list[Node], judge_gpus: int = 0) -> Plan:
    """Return the bundles of a run, with the learner on as few nodes as possible, and as many engines as fit.

    A bundle of the learner takes all GPUs of a node, and the last bundle takes the rest of the ranks. If nodes differ
    in size, bundles have the size of the largest nodes, or of smaller nodes if the learner only fits on those.
    """
    of_learner = [node for node in nodes if find_group(node.free) == LEARNER] or nodes
    # from the largest, so that the learner takes as few nodes as possible
    sizes = sorted({int(node.free.get("GPU", 0)) for node in of_learner} - {0}, reverse=True)
    plans = [_plan_apart(config, nodes, size, judge_gpus) for size in sizes]
    # if none fits, the first, because a message then says how many nodes of the largest size are missing
    return next((fitting for fitting in plans if fitting.holds_learner), plans[0])


def _plan_apart(config: TrainingConfig, nodes: list[Node], ranks_per_node: int, judge_gpus: int) -> Plan:
    whole, rest = divmod(config.learner.ranks, ranks_per_node)
    planned = Plan([ranks_per_node] * whole + [rest] * bool(rest))
    # copies, because each bundle is taken from a node's free resources, and other sizes are planned too
    planned.nodes = [Node(node.name, dict(node.free)) for node in nodes]
    others = list(planned.nodes)
    for ranks in planned.ranks:
        if (node := _take(limit_to_group(make_rank_bundle(config.learner, ranks), LEARNER, nodes), others)) is None:
            return planned
        # the learner's group is STRICT_SPREAD: Ray puts no two of its bundles on one node
        others.remove(node)
        planned.learner += 1
    # before the engines: a run can do with fewer engines, but not without its judge
    planned.judge = _take_judge(judge_gpus, planned.nodes)
    engine = limit_to_group(make_engine_bundle(config.actors), ACTORS, nodes)
    while planned.engines < config.actors.count and _take(engine, planned.nodes):
        planned.engines += 1
    return planned


def plan_of_shared(config: TrainingConfig, nodes: list[Node], judge_gpus: int) -> Plan:
    """Return the bundles of ranks and engines that share GPUs, one per rank, as far as they fit, and a judge."""
    planned = Plan([1] * config.learner.ranks, nodes=[Node(node.name, dict(node.free)) for node in nodes])
    bundle = limit_to_group(make_shared_bundle(config), LEARNER, nodes)
    while not planned.holds_learner and _take(bundle, planned.nodes):
        planned.learner += 1
    if planned.holds_learner:
        planned.judge = _take_judge(judge_gpus, planned.nodes)
    return planned


def _take_judge(gpus: int, nodes: list[Node]) -> str | None:
    """Take the bundle of a judge on this number of GPUs from a node, and return its group, or None if none fits."""
    bundle = judge_bundle(gpus)
    return next((group for group in RESOURCES if gpus and _take(limit_to_group(bundle, group, nodes), nodes)), None)


def _take(bundle: Bundle, nodes: list[Node]) -> Node | None:
    """Take a bundle from the node that keeps the largest share of its resources, as Ray does, or return None."""
    node = max(
        filter(lambda node: node.holds(bundle), nodes), key=lambda node: node.compute_share_left(bundle), default=None
    )
    if node:
        for kind, amount in bundle.items():
            node.free[kind] -= amount
    return node


def describe_lack(config: TrainingConfig, nodes: list[Node], engines: int, judge_gpus: int = 0) -> str:
    """Return a message about what the nodes lack for learner, judge and this number of engines, or an empty string."""
    planned, learner, actors = plan(config, nodes, judge_gpus), config.learner, config.actors
    if not planned.holds_learner:
        size = planned.ranks[0]
        need = (
            f"learner.ranks = {learner.ranks} (learner.cpus = {learner.cpus:g} each) need {len(planned.ranks)} nodes, "
            f"with {size} GPUs and {size * learner.cpus:g} CPUs on each but perhaps the last: {planned.learner} fit"
        )
    elif judge_gpus and planned.judge is None:
        need = (
            f"the judge that the run serves needs {judge_gpus} GPUs of one node next to learner.ranks = {learner.ranks}"
        )
    elif planned.engines < engines:
        need = (
            f"actors.count = {actors.count} engines of {actors.engine.gpus} GPUs (actors.cpus = "
            f"{actors.cpus:g} each): {planned.engines} fit next to learner.ranks = {learner.ranks}"
        )
    else:
        return ""
    left = [str(node) for node in planned.nodes if node.free.get("GPU")] or ["no node has a GPU free"]
    more = [f"and {len(left) - 4} more nodes have GPUs free"] if len(left) > 4 else []
    return f"{need}; {', '.join(left[:4] + more)}"


def describe_shared_lack(config: TrainingConfig, nodes: list[Node], judge_gpus: int = 0) -> str:
    """Return a message about what the nodes lack for a judge, and ranks and engines that share GPUs, or "" if nothing.

    Ranks and engines have priority over the judge.
    """
    planned, ranks = plan_of_shared(config, nodes, judge_gpus), config.learner.ranks
    if planned.holds_learner:
        if judge_gpus and planned.judge is None:
            return (
                f"the judge that the run serves needs {judge_gpus} GPUs of one node next to the {ranks} GPUs that "
                "learner.ranks and engines share"
            )
        return ""
    return (
        f"placement = {config.placement}: learner.ranks = {ranks} (learner.cpus = {config.learner.cpus:g} each), with "
        f"an engine next to each (actors.cpus = {config.actors.cpus:g}), need {ranks} GPUs with "
        f"{make_shared_bundle(config).get('CPU', 0):g} CPUs each: {planned.learner} fit"
    )


def describe_lack_without_gpus(config: TrainingConfig, nodes: list[Node], engines: int) -> str:
    """Return a message about what nodes in groups without GPUs lack for ranks and engines, or an empty string."""
    left = [Node(node.name, dict(node.free)) for node in nodes]
    asked = (
        (LEARNER, "learner.ranks", config.learner.ranks, config.learner.ranks, config.learner.cpus),
        (ACTORS, "actors.count", config.actors.count, engines, config.actors.cpus),
    )
    for group, option, count, needed, cpus in asked:
        bundle, fitting = limit_to_group({"CPU": cpus}, group, nodes), 0
        while fitting < count and _take(bundle, left):
            fitting += 1
        if fitting < needed:
            return f"{option} = {count} ({group}.cpus = {cpus:g} each): {fitting} fit on the machines of group {group}"
    return ""
