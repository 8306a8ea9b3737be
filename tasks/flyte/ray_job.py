"""Implements Flyte's task type `ray`, for tasks that get their own Ray cluster.

It registers the same plugin as `flytekitplugins-ray`. That distribution requires Ray's wheels even to register or
launch a task. Here a job is only Flyte's message, and Ray is imported when the task runs.
"""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from flyteidl.core.tasks_pb2 import K8sPod
from flyteidl.plugins import ray_pb2
from flytekit import FlyteContextManager, PodTemplate, Resources
from flytekit.configuration import SerializationSettings
from flytekit.core.context_manager import ExecutionParameters
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.extend import TaskPlugins
from google.protobuf.json_format import MessageToDict, ParseDict

from tasks.flyte.archive import find_unpacked_files
from tasks.kubernetes.pod_templates import add_resources, primary
from tasks.machine.local_ray import start_ray

KUBERNETES = {"cpu": "cpu", "mem": "memory", "gpu": "nvidia.com/gpu", "ephemeral_storage": "ephemeral-storage"}
"""Kubernetes' names for the fields of `Resources`."""


@dataclass
class HeadNodeConfig:
    """The node on which the task's own process runs. Its request is also its limit.

    `pod_template` is merged into the pod that Flyte creates for the task. Its pod spec is a mapping.
    """

    requests: Resources
    pod_template: PodTemplate | None = None


@dataclass
class WorkerNodeConfig:
    """A group of equal nodes: its name, the number of nodes, and the resources (request and limit) of each.

    `pod_template` is merged into the pod that Flyte creates for the task. Its pod spec is a mapping. `ray_resources`
    are custom Ray resources of each node: amounts by name.
    """

    group_name: str
    replicas: int
    requests: Resources
    pod_template: PodTemplate | None = None
    ray_resources: dict[str, float] = field(default_factory=dict)


@dataclass
class RayJobConfig:
    """The Ray cluster of a task.

    Attributes:
        head_node_config: the head node.
        worker_node_config: the groups of workers.
        shutdown_after_job_finishes: whether the nodes are released when the task ends.
    """

    head_node_config: HeadNodeConfig
    worker_node_config: list[WorkerNodeConfig]
    shutdown_after_job_finishes: bool = False


class RayJobTask(PythonFunctionTask[RayJobConfig]):
    """A task whose function runs with Ray initialised, on its cluster or locally if it has none."""

    def __init__(self, task_config: RayJobConfig, task_function: Callable, **kwargs: Any) -> None:
        super().__init__(task_config, task_function, task_type="ray", **kwargs)

    def pre_execute(self, user_params: ExecutionParameters | None) -> ExecutionParameters | None:
        """Join the cluster, and send this folder's code to all nodes. Flytekit calls it before the function."""
        import ray

        state = FlyteContextManager.current_context().execution_state
        if state is None or state.is_local_execution():
            start_ray(ignore_reinit_error=True)
        else:
            with tempfile.TemporaryDirectory() as folder:  # Ray uploads it before `init` returns
                size = copy_code(Path(), Path(folder))
                print(f"Code for the cluster's nodes: {size / 1e6:.1f} MB.", file=sys.stderr, flush=True)
                ray.init(runtime_env={"working_dir": folder})
        return user_params

    def get_custom(self, settings: SerializationSettings) -> dict[str, Any]:
        """Return the job as Flyte's message. Flytekit calls it when the task is registered."""
        job = self.task_config
        workers = [
            ray_pb2.WorkerGroupSpec(
                group_name=group.group_name,
                replicas=group.replicas,
                min_replicas=group.replicas,
                max_replicas=group.replicas,
                ray_start_params=_start_params(group.ray_resources),
                k8s_pod=_make_pod("ray-worker", group.requests, group.pod_template),
            )
            for group in job.worker_node_config
        ]
        head = job.head_node_config
        head_group = ray_pb2.HeadGroupSpec(k8s_pod=_make_pod("ray-head", head.requests, head.pod_template))
        return MessageToDict(
            ray_pb2.RayJob(
                ray_cluster=ray_pb2.RayCluster(head_group_spec=head_group, worker_group_spec=workers),
                shutdown_after_job_finishes=job.shutdown_after_job_finishes,
            )
        )


def copy_code(source: Path, target: Path) -> int:
    """Copy the code of a working directory into the folder `target`, and return its size in bytes.

    If an archive was unpacked in the directory, the code is the files of the archive. If the code comes with the image,
    it is the modules in the directory and all files in its subfolders that contain a module. Other files are excluded,
    because the directory may be the home folder with caches, models and outputs. So are hidden files.
    """
    files = find_unpacked_files(source)
    for path in _list_image_code(source) if files is None else files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, target / path)
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def _list_image_code(folder: Path) -> Iterator[Path]:
    for entry in folder.iterdir():
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and any(entry.glob("*.py")):
            below = (path.relative_to(folder) for path in entry.rglob("*") if path.is_file())
            yield from (path for path in below if not any(_is_no_code(name) for name in path.parts))
        elif entry.suffix == ".py":
            yield entry.relative_to(folder)


def _is_no_code(name: str) -> bool:
    return name == "__pycache__" or name.startswith(".")


def _start_params(resources: dict[str, float]) -> dict[str, str]:
    """Return the parameters of `ray start` on a node with these custom resources, or none without resources.

    They replace the plugin's defaults, so the default that disables usage statistics is repeated here. The plugin adds
    the node's address to any parameters.
    """
    if not resources:
        return {}
    # KubeRay writes the value into a shell command. It also strips the quotes and parses the rest as JSON, which fails
    # for the double quotes with backslashes in its documentation: such a node is started without --num-gpus. KubeRay
    # itself uses single quotes. Without spaces, the value is one shell word in any case.
    amounts = json.dumps(resources, separators=(",", ":"))
    return {"resources": f"'{amounts}'", "disable-usage-stats": "true"}


def _make_pod(container: str, resources: Resources, template: PodTemplate | None) -> K8sPod:
    """Return a node's pod, which Flyte merges into the task's pod.

    Containers are merged by name, and lists are concatenated.
    """
    asked = {KUBERNETES[amount.name]: getattr(resources, amount.name) for amount in fields(resources)}
    given = {name: amount for name, amount in asked.items() if amount is not None}
    assert not any(isinstance(amount, (list, tuple)) for amount in given.values()), "a node has one amount of each"
    spec = dict(template.pod_spec) if template else {}
    node = add_resources({**primary(spec), "name": container}, given, given)
    labels = {"labels": template.labels or {}, "annotations": template.annotations or {}} if template else {}
    pod = {"metadata": labels, "podSpec": {**spec, "containers": [node]}, "primaryContainerName": "primary"}
    return ParseDict(pod, K8sPod())


TaskPlugins.register_pythontask_plugin(RayJobConfig, RayJobTask)
