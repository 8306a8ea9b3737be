"""Lists the checks of a cluster in their order: checks of the training machines, and checks of a single pod."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from tasks.cluster_check import network, nodes, services
from tasks.cluster_check.nodes import NodeFacts
from tasks.failures import MistakeError
from tasks.flyte.registration import CODE, SECRETS
from tasks.gpu_check.results import Findings, Result, run_check
from tasks.inputs.disk_needs import HEAD, ONE_POD, PodNeed, estimate_training_needs, measure_stored_models
from tasks.inputs.files import DataFile, Recipe
from tasks.inputs.memory_needs import judge_gpus
from tasks.machine.groups import ACTORS, LEARNER

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

Check = Callable[[Findings], None]
"""A check, which writes its results into `Findings`."""

PROBE_SECONDS = 300.0
"""Timeout for collecting the facts of all nodes, seconds."""


class ClusterCheckError(MistakeError):
    """Raised if a cluster lacks something that a run needs. The message contains the messages of the failed checks."""


def collect_node_facts(*, sandbox: bool) -> list[NodeFacts]:
    """Return the facts of all nodes of the Ray cluster, starting with this process's node.

    Args:
        sandbox: whether to start a sandbox on this node.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from tasks.training.cluster.nodes import list_living_nodes

    own = ray.get_runtime_context().get_node_id()
    others = [node["NodeID"] for node in list_living_nodes() if node["NodeID"] != own]
    probe: Any = ray.remote(max_calls=1, num_cpus=0)(nodes.facts)
    calls = [
        probe.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote() for node in others
    ]
    return [nodes.facts(sandbox=sandbox), *ray.get(calls, timeout=PROBE_SECONDS)]


def needs_sandbox(data: DataFile) -> bool:
    """Return whether programs are run on the node that grades responses."""
    return data.verifiers.code.remote is None and any("code" in source.verifiers for source in data.used_sources)


def count_needed_gpus(data: DataFile, training: Recipe) -> int:
    """Return the number of GPUs for the learner, the engines and the judge if training serves it. 0 means no GPUs."""
    if not training.cluster.gpus_per_node:
        return 0
    as_few = training.shares_gpus or (training.placement == "auto" and training.as_many_engines_as_ranks)
    return (training.learner.ranks if as_few else training.gpus) + judge_gpus(data, training.benchmarks)


def list_pods(machines: Sequence[NodeFacts], data: DataFile, training: Recipe) -> list[PodNeed]:
    """Return the training pod on each machine with its disk need, or no pods if the size of the model is not known.

    The first machine runs the controller. Any other machine runs actors if the name of its pod, as KubeRay builds it,
    contains the name of their group, and learner ranks otherwise.
    """
    needs = {need.name: need for need in estimate_training_needs(data, training)}
    if not needs:
        return []
    if ONE_POD in needs:
        return [needs[ONE_POD]] * len(machines)
    groups = [ACTORS if f"-{ACTORS}-" in machine.name else LEARNER for machine in machines[1:]]
    return [needs[HEAD], *(needs[f"training: {group}"] for group in groups)]


def make_machine_checks(
    data: DataFile,
    training: Recipe,
    machines: Sequence[NodeFacts],
    storage: tuple[AbstractFileSystem, str],
    *,
    on_this_machine: bool,
) -> dict[str, Check]:
    """Return the checks of the machines of training, by name.

    Args:
        data: the data file.
        training: the recipe.
        machines: the facts of the machines.
        storage: file system and folder that the run is stored in.
        on_this_machine: whether the stages run on this machine and not in pods.
    """
    working = [node for node in machines if node.gpus] or list(machines)
    models = measure_stored_models(training, data)
    weights = models.weights_gib if models and not training.lora else None
    gpus = count_needed_gpus(data, training)

    def all_reduce(findings: Findings) -> None:
        measured = network.measure_reduction(training.learner.ranks, gpus=bool(gpus))
        network.check_network(findings, measured, working)

    def disk(findings: Findings) -> None:
        pods = list_pods(machines, data, training)
        nodes.check_disk(findings, machines, pods, limited=not on_this_machine)

    def images(findings: Findings) -> None:
        nodes.check_images(findings, machines, os.environ.get(CODE))
        nodes.check_accelerator(findings, gpus)

    return {
        "images of training": images,
        "GPUs and driver": lambda findings: nodes.check_gpus(findings, machines, gpus),
        "shared memory": lambda findings: nodes.check_shared_memory(findings, working, weights),
        "disk": disk,
        "network": all_reduce,
        "sandbox": lambda findings: nodes.check_sandbox(findings, machines[0], needs_sandbox(data)),
        "storage": lambda findings: services.check_storage(findings, *storage),
        "judge": lambda findings: services.check_endpoint(findings, data, on_this_machine=on_this_machine),
        "KubeRay": services.check_kuberay,
    }


def make_pod_checks(data: DataFile, training: Recipe, pod: NodeFacts) -> dict[str, Check]:
    """Return the checks of a pod of the data stages, by name."""
    secrets = services.find_needed_secrets(data, training, os.environ.get(SECRETS, ""))
    return {
        "image of data": lambda findings: nodes.check_images(findings, [pod], os.environ.get(CODE)),
        "hub": lambda findings: services.check_hub(findings, services.list_hub_names(data, training)),
        "secrets": lambda findings: services.check_secrets(findings, secrets),
    }


def run_checks(checks: Mapping[str, Check]) -> str:
    """Run the checks one after the other, and return their results as JSON."""
    return json.dumps([asdict(run_check(name, check)) for name, check in checks.items()])


def parse_results(texts: Sequence[str]) -> list[Result]:
    """Parse the results that `run_checks` returned."""
    rows: list[dict[str, Any]] = [row for text in texts for row in json.loads(text)]
    return [Result(**row) for row in rows]


def make_deck_rows(results: Sequence[Result]) -> list[dict[str, Any]]:
    """Return the rows of the deck's table, each with a check, its status, its seconds and its message."""
    return [
        {"check": result.name, "status": result.status, "seconds": round(result.seconds, 1), "result": result.reason}
        for result in results
    ]


def require_all(results: Sequence[Result]) -> None:
    """Raise `ClusterCheckError` if a check failed, with the names and messages of all failed checks."""
    failed = [result for result in results if result.status == "failed"]
    if failed:
        sentences = "; ".join(f"{result.name}: {result.reason.rstrip('.')}" for result in failed)
        raise ClusterCheckError(f"{len(failed)} of {len(results)} checks failed: {sentences}")
