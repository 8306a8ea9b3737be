"""Collects facts about the nodes of a cluster, and checks them against the needs of a run.

each node:   facts() ──► NodeFacts ─┐
each node:   facts() ──► NodeFacts ─┴─► check_images, check_gpus, check_shared_memory, check_disk, check_sandbox
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import socket
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from tasks.gpu_check.results import Findings, SkippedError
from tasks.inputs.disk_needs import PodNeed
from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.lineage.code_digest import code_digest
from tasks.machine.gpus import DRIVERS, read_driver_version
from tasks.machine.image import ImageError, check_image
from tasks.machine.packages import installed_version
from tasks.sizing.pod_sizes import GIB, VERSIONS
from tasks.storage.locations import resolve_folder
from tasks.training.cluster.disk import Folder

LIBRARIES = ("torch", "vllm", "ray", "deepspeed", "transformers")
"""Distributions whose versions must be the same on all nodes."""

TASK = "tasks.cluster_check.task"
"""Module whose digest identifies the code of an image."""

RDMA = Path("/sys/class/infiniband")
"""Folder with an entry for each RDMA device of the machine or pod."""


class Disk(NamedTuple):
    """A disk as seen by a process: the device number of its file system, and its free bytes."""

    device: int
    free: int


@dataclass(frozen=True)
class NodeFacts:
    """Facts about one node or pod that a run depends on.

    Attributes:
        name: name of the machine or pod.
        code: digest of the project's code there.
        versions: versions of the installed `LIBRARIES`.
        gpus: names of the GPUs that torch can use.
        cuda: version of CUDA that torch is built for, or empty if torch is built for CPUs.
        driver: version of NVIDIA's driver, or empty if there is none.
        shared_memory: size of `/dev/shm`, bytes.
        disks: device number and free bytes of the disk of each folder in `tasks.training.cluster.disk.FOLDERS`.
        rdma: names of the RDMA devices.
        sandbox: the reason why programs cannot be run there, or empty if they can.
    """

    name: str
    code: str
    versions: dict[str, str] = field(default_factory=dict)
    gpus: tuple[str, ...] = ()
    cuda: str = ""
    driver: str = ""
    shared_memory: int = 0
    disks: dict[Folder, Disk] = field(default_factory=dict)
    rdma: tuple[str, ...] = ()
    sandbox: str = ""


def facts(*, sandbox: bool = False) -> NodeFacts:
    """Return the facts of the machine or pod of this process. Imports torch if it is installed.

    Args:
        sandbox: whether to start a sandbox for programs, which takes a second.
    """
    from tasks.verifiers.code import missing_resources

    gpus, cuda = _list_gpus() if importlib.util.find_spec("torch") else ((), "")
    return NodeFacts(
        name=socket.gethostname(),
        code=code_digest(TASK),
        versions={name: version for name in LIBRARIES if (version := _find_version(name))},
        gpus=gpus,
        cuda=cuda,
        driver=read_driver_version(),
        shared_memory=shutil.disk_usage(SHARED_MEMORY).total,
        disks={name: measure_disk(folder) for name, folder in list_written_folders().items()},
        rdma=tuple(sorted(device.name for device in RDMA.iterdir())) if RDMA.is_dir() else (),
        sandbox=" ".join(missing_resources({})) if sandbox else "",
    )


def _list_gpus() -> tuple[tuple[str, ...], str]:
    """Return the names of the GPUs that torch can use, and the version of CUDA that it is built for."""
    import torch

    names = tuple(torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count()))
    return names, torch.version.cuda or ""


def measure_disk(folder: Path) -> Disk:
    """Return the disk of a folder, which need not exist yet."""
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    return Disk(existing.stat().st_dev, shutil.disk_usage(existing).free)


def list_written_folders() -> dict[Folder, Path]:
    """Return the folders that this process writes to in a pod."""
    cache = Path.home() / ".cache" / "huggingface"
    return {
        "runs": resolve_folder("").absolute(),
        "downloads": Path(tempfile.gettempdir()),
        "hub": Path(os.environ.get("HF_HOME", cache)).absolute(),
    }


def check_images(findings: Findings, nodes: Sequence[NodeFacts], registered: str | None = None) -> None:
    """Compare the code and libraries of all nodes with the first node's, and the code with the registered code.

    Args:
        findings: receives the faults and the note.
        nodes: facts of all nodes, starting with the task's node.
        registered: digest of the code that the task was registered with, or None if it was not registered.
    """
    first = nodes[0]
    if registered is not None and registered != first.code:
        findings.faults.append(
            f"The image on {first.name} has code {first.code[:12]}, and {registered[:12]} is registered: register with "
            "--copy all, or build the images again."
        )
    for node in nodes[1:]:
        if node.code != first.code:
            findings.faults.append(
                f"{node.name} has code {node.code[:12]}, and {first.name} has {first.code[:12]}: give all pods of the "
                "run the same image."
            )
        for name in LIBRARIES:
            own, other = first.versions.get(name, "none"), node.versions.get(name, "none")
            if own != other:
                findings.faults.append(f"{node.name} has {name} {other}, and {first.name} has {own}.")
    versions = ", ".join(f"{name} {version}" for name, version in first.versions.items())
    findings.note = f"{_count(nodes)} with code {first.code[:12]}, {versions}."


def check_accelerator(findings: Findings, gpus: int) -> None:
    """Check that the engines in this pod's image run on the machines of a recipe that requests `gpus` GPUs."""
    try:
        check_image(gpus, f"the recipe requests {gpus} GPUs")
    except ImageError as error:
        findings.faults.append(f"{error}.")


def check_gpus(findings: Findings, nodes: Sequence[NodeFacts], needed: int) -> None:
    """Check that torch can use as many GPUs as are needed on all nodes together, and that drivers are new enough.

    Args:
        findings: receives the faults and the note.
        nodes: facts of all nodes.
        needed: number of GPUs of the learner, engines and judge.

    Raises:
        SkippedError: no GPU is needed.
    """
    if not needed:
        raise SkippedError("The recipe trains without GPUs (cluster.gpus_per_node is 0).")
    for node in nodes:
        cuda, driver = node.cuda.partition(".")[0], node.driver.partition(".")[0]
        oldest = DRIVERS.get(cuda, 0)
        if driver and int(driver) < oldest:
            findings.faults.append(
                f"{node.name} has NVIDIA's driver {node.driver}, and CUDA {node.cuda} needs {oldest} or later."
            )
        elif driver and not node.gpus:
            why = f"CUDA {node.cuda}" if node.cuda else "CPUs"
            findings.faults.append(
                f"{node.name} has NVIDIA's driver {node.driver}, and torch, which is built for {why}, cannot use a GPU."
            )
    usable = sum(len(node.gpus) for node in nodes)
    if usable < needed:
        findings.faults.append(f"torch can use {usable} GPUs on {_count(nodes)}, and the recipe needs {needed}.")
    kinds = sorted({gpu for node in nodes for gpu in node.gpus})
    drivers = sorted({node.driver for node in nodes if node.driver})
    findings.note = f"{usable} of {needed} GPUs ({', '.join(kinds)}) with driver {', '.join(drivers)}."


def check_shared_memory(findings: Findings, nodes: Sequence[NodeFacts], weights_gib: float | None) -> None:
    """Check that `/dev/shm` of each node has room for three versions of the weights and 1 GiB per GPU.

    If there is only one node and the weights do not fit, they are passed through the run folder instead.

    Args:
        findings: receives the faults and the note.
        nodes: nodes with learner ranks or engines.
        weights_gib: size of the policy's weights, or None if it is not known or only an adapter is trained.
    """
    versions = VERSIONS * (weights_gib or 0)
    is_alone = len(nodes) == 1
    for node in nodes:
        needed, size = len(node.gpus) + (0 if is_alone else versions), node.shared_memory / GIB
        what = "1 GiB for each GPU" if is_alone else "three versions of the weights, and 1 GiB for each GPU"
        findings.require(
            size >= needed,
            f"{node.name} has {size:.2f} GiB of shared memory, and needs {needed:.2f}: {what} "
            "(cluster.node.shared_memory_gib).",
        )
    smallest = min(node.shared_memory for node in nodes) / GIB
    findings.note = f"{_count(nodes)} with {smallest:.1f} GiB or more of shared memory."
    if is_alone and smallest < versions + len(nodes[0].gpus):
        findings.note = (
            f"1 node with {smallest:.2f} GiB of shared memory: weights, {versions:.2f} GiB, go through the run folder."
        )


def check_disk(findings: Findings, nodes: Sequence[NodeFacts], pods: Sequence[PodNeed], *, limited: bool) -> None:
    """Compare what each pod stores with the free disk of its node, including volumes, and with the pod's limit.

    The limit is not checked for a pod that names a pod template, because the template may mount volumes.

    Args:
        findings: receives the faults and the note.
        nodes: facts of all nodes.
        pods: the pod of each node, and its need.
        limited: whether the nodes are pods, whose limit equals their request.

    Raises:
        SkippedError: the size of the model is not known.
    """
    if not pods:
        raise SkippedError("The size of the model is not known before it is downloaded.")
    for node, (name, option, pod, whole) in zip(nodes, pods, strict=True):
        need = whole.drop_volumes(pod.template)
        if limited and not isinstance(pod.template, str) and pod.disk_gib is not None:
            findings.require(
                pod.disk_gib >= need.run_gib,
                f"{node.name} ({name}) has a limit of {pod.disk_gib} GiB of disk ({option}.disk_gib), and needs "
                f"{need.run_gib}: {need.parts(need.run)}.",
            )
        stored = {disk.device: 0.0 for disk in node.disks.values()}
        stored[node.disks["downloads"].device] += whole.slack_gib
        for item in whole.run:
            stored[node.disks[item.folder].device] += item.gib
        for device, free in {disk.device: disk.free / GIB for disk in node.disks.values()}.items():
            findings.require(
                free >= stored[device],
                f"{node.name} ({name}) has a disk with {free:.0f} GiB free, and needs {stored[device]:.0f} on it: "
                f"{whole.parts(whole.run)}.",
            )
    least = min(disk.free for node in nodes for disk in node.disks.values()) / GIB
    most = (max(pod.need.run_gib for pod in pods), max(pod.need.gib for pod in pods))
    findings.note = (
        f"{_count(nodes)} with {least:.0f} GiB or more of free disk; a run takes up to {most[0]} GiB, and a "
        f"resume with other learner ranks {most[1]} GiB."
    )


def check_sandbox(findings: Findings, node: NodeFacts, needed: bool) -> None:
    """Check that programs in responses can be run on the node that grades them.

    Raises:
        SkippedError: no source has programs to run, or a remote server runs them.
    """
    if not needed:
        raise SkippedError(
            "No source needs the sandbox here: none has the verifier code, or code.remote runs programs."
        )
    findings.require(not node.sandbox, f"{node.name} cannot run programs: {node.sandbox}.")
    findings.note = f"{node.name} can run programs in a sandbox."


def _count(nodes: Sequence[NodeFacts]) -> str:
    return f"{len(nodes)} node{'' if len(nodes) == 1 else 's'}"


def _find_version(distribution: str) -> str | None:
    return installed_version(distribution) or installed_version(f"{distribution}-cpu")
