"""A task on a Ray cluster of its own, as Flyte's task type `ray`.

It registers what `flytekitplugins-ray` registers. That distribution requires Ray's wheels, and nobody could register or
launch without them; here a job is Flyte's own message and nothing else, and Ray is imported by the task that runs.
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

from tasks.flyte.archive import unpacked_files
from tasks.machine.local_ray import start_ray
from tasks.pod_templates import primary, with_resources

KUBERNETES = {"cpu": "cpu", "mem": "memory", "gpu": "nvidia.com/gpu", "ephemeral_storage": "ephemeral-storage"}
"""Names that Kubernetes has for the fields of `Resources`."""


@dataclass
class HeadNodeConfig:
    """The node where the task's own process runs; its request is also its limit.

    Its `pod_template` is laid over the pod that Flyte makes for the task; the pod spec in it is a mapping.
    """

    requests: Resources
    pod_template: PodTemplate | None = None


@dataclass
class WorkerNodeConfig:
    """A group of equal nodes: its name, its number of nodes, and the resources of one, both request and limit.

    Its `pod_template` is laid over the pod that Flyte makes for the task; the pod spec in it is a mapping.
    `ray_resources` are further resources that Ray counts on each node: amounts by our own names.
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
        head_node_config: the head.
        worker_node_config: the groups of workers.
        shutdown_after_job_finishes: whether the nodes are given back when the task ends.
    """

    head_node_config: HeadNodeConfig
    worker_node_config: list[WorkerNodeConfig]
    shutdown_after_job_finishes: bool = False


class RayJobTask(PythonFunctionTask[RayJobConfig]):
    """A task whose function runs with Ray initialised: on its cluster, or locally where it has none."""

    def __init__(self, task_config: RayJobConfig, task_function: Callable, **kwargs: Any) -> None:
        super().__init__(task_config, task_function, task_type="ray", **kwargs)

    def pre_execute(self, user_params: ExecutionParameters | None) -> ExecutionParameters | None:
        """Join the cluster with this folder's code as that of all nodes; flytekit calls it before the function."""
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
        """Return the job as Flyte's message; flytekit calls it when the task is registered."""
        job = self.task_config
        workers = [
            ray_pb2.WorkerGroupSpec(
                group_name=group.group_name,
                replicas=group.replicas,
                min_replicas=group.replicas,
                max_replicas=group.replicas,
                ray_start_params=_start_params(group.ray_resources),
                k8s_pod=_pod("ray-worker", group.requests, group.pod_template),
            )
            for group in job.worker_node_config
        ]
        head = job.head_node_config
        head_group = ray_pb2.HeadGroupSpec(k8s_pod=_pod("ray-head", head.requests, head.pod_template))
        return MessageToDict(
            ray_pb2.RayJob(
                ray_cluster=ray_pb2.RayCluster(head_group_spec=head_group, worker_group_spec=workers),
                shutdown_after_job_finishes=job.shutdown_after_job_finishes,
            )
        )


def copy_code(source: Path, target: Path) -> int:
    """Copy the code of a working directory into the folder `target`; return its size in bytes.

    Code are the files of the archive that was unpacked there. Where the image holds the code, they are the modules in
    the directory, and its folders that hold a module, with all files in these: it may be the home folder, and caches,
    models and outputs are not code, nor is what is hidden.
    """
    files = unpacked_files(source)
    for path in _code_of_image(source) if files is None else files:
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source / path, target / path)
    return sum(path.stat().st_size for path in target.rglob("*") if path.is_file())


def _code_of_image(folder: Path) -> Iterator[Path]:
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
    """Return the parameters of `ray start` on a node with these resources; none if it has no resources of our own.

    They take the place of the plugin's defaults, so that its default of no usage statistics is given, too; it adds the
    node's address to any parameters.
    """
    if not resources:
        return {}
    # KubeRay writes the value into a line of a shell. It also takes the quotes off and parses the rest as JSON, which
    # the backslashes in the double quotes of its documents are not: such a node is started without --num-gpus. It
    # quotes by single quotes itself. Without spaces the value is one word of a shell in any case.
    amounts = json.dumps(resources, separators=(",", ":"))
    return {"resources": f"'{amounts}'", "disable-usage-stats": "true"}


def _pod(container: str, resources: Resources, template: PodTemplate | None) -> K8sPod:
    """Return a node's pod as Flyte lays it over that of the task: containers merge by name, lists are joined."""
    asked = {KUBERNETES[amount.name]: getattr(resources, amount.name) for amount in fields(resources)}
    given = {name: amount for name, amount in asked.items() if amount is not None}
    assert not any(isinstance(amount, (list, tuple)) for amount in given.values()), "a node has one amount of each"
    spec = dict(template.pod_spec) if template else {}
    node = with_resources({**primary(spec), "name": container}, given, given)
    labels = {"labels": template.labels or {}, "annotations": template.annotations or {}} if template else {}
    pod = {"metadata": labels, "podSpec": {**spec, "containers": [node]}, "primaryContainerName": "primary"}
    return ParseDict(pod, K8sPod())


TaskPlugins.register_pythontask_plugin(RayJobConfig, RayJobTask)
