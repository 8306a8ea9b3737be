"""A small engine for workflows as they are registered: what Flyte's propeller does with them, one node at a time.

A node's inputs come from its bindings, its container's command runs as a process of its own in a new folder, and its
outputs are read from blob storage. Nothing else passes from node to node, or from attempt to attempt, and the folder is
deleted. Nodes that are ready run in the order of `first`. Known are tasks, dynamic tasks and array nodes, whose items
run one after the other; another kind of node is an error.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import uuid
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import boto3
import psutil
from flyteidl.admin import launch_plan_pb2, task_pb2, workflow_pb2
from flyteidl.core import dynamic_job_pb2, errors_pb2, literals_pb2, tasks_pb2
from flyteidl.core import workflow_pb2 as graph_pb2
from google.protobuf.message import Message

from images import EXTRAS
from tests.object_store import BUCKET, KEYS, ObjectStore

Literals = dict[str, literals_pb2.Literal]

KINDS = {
    "1": ("task", task_pb2.TaskSpec),
    "2": ("workflow", workflow_pb2.WorkflowSpec),
    "3": ("launch plan", launch_plan_pb2.LaunchPlan),
}
"""Numbers in the names of a package's files."""

IMAGE = "registry.example/{}:v1"
MAPPED = re.compile(r"map_(\w+)_[0-9a-f]{32}-arraynode$")
"""What flytekit calls a mapped task."""


def package(bin_folder: Path, output: Path, cwd: Path, environment: Mapping[str, str]) -> dict[str, Message]:
    """Package the workflows in `cwd`; return messages by kind and name, as in `task/tasks.inputs.preflight.preflight`.

    Their images are `IMAGE` with the name filled in.
    """
    command = [str(bin_folder / "pyflyte"), "--pkgs", "workflows", "package", "--force", "--output", str(output)]
    images = [f"--image={name}={IMAGE.format(name)}" for name in EXTRAS["none"]]
    images.append(f"--image={IMAGE.format('default')}")
    done = subprocess.run([*command, *images], cwd=cwd, env=dict(environment), capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    entities = {}
    with tarfile.open(output) as archive:
        for member in archive.getmembers():
            _, name, number = re.fullmatch(r"(\d+)_(.+)_(\d)\.pb", member.name).groups()
            kind, message = KINDS[number]
            entity = message.FromString(archive.extractfile(member).read())
            for node in entity.template.nodes if kind == "workflow" else ():
                node.upstream_node_ids.sort()  # flytekit takes them from a set
            entities[f"{kind}/{name}"] = entity
    return entities


class FailedError(Exception):
    """A container that wrote an error, or nothing.

    Attributes:
        recoverable: whether Flyte would try again.
    """

    def __init__(self, message: str, *, recoverable: bool) -> None:
        super().__init__(message)
        self.recoverable = recoverable


@dataclass(frozen=True)
class Attempt:
    """A try of a task: of which execution, and its number there, from 0."""

    execution: str = "execution"
    number: int = 0

    def place(self, task: str) -> str:
        """Where it writes, below the places of metadata and of raw data."""
        return f"{self.execution}/{task}/data/{self.number}"


Arrange = Callable[[Callable[[], None]], AbstractContextManager[None]]
"""Is given what kills a container, all its processes at once, and sees to it that it is called within the block."""


@dataclass
class Propeller:
    """Runs registered workflows.

    Attributes:
        entities: what `package` gave.
        store: where inputs, outputs and raw data are.
        environments: the folder of programs of each image, by the image's name.
        make_folder: fills a new, empty working folder as the image would.
        first: image names whose nodes run before others that are ready.
        ran: the nodes that ran, in order, as `node: task`.
        variables: what all containers find in their environment besides.
    """

    entities: Mapping[str, Message]
    store: ObjectStore
    environments: Mapping[str, Path]
    make_folder: Callable[[Path], None]
    first: tuple[str, ...] = ()
    ran: list[str] = field(default_factory=list)
    variables: Mapping[str, str] = field(default_factory=dict)

    def run(self, workflow: str, inputs: Literals) -> Literals:
        """The outputs of a workflow, by name."""
        template = self.entities[f"workflow/{workflow}"].template
        return self._run_nodes(workflow.rsplit(".", 1)[-1], template.nodes, template.outputs, inputs, {})

    def run_task(
        self, task: str, inputs: Literals, attempt: Attempt | None = None, killed: Arrange | None = None
    ) -> Literals:
        """The outputs of one task, by name; of an attempt that is killed there are none, which is a `FailedError`."""
        return self._run_task(task, self._template(task, {}), inputs, attempt, killed)

    def _template(self, task: str, dynamic: Mapping[str, tasks_pb2.TaskTemplate]) -> tasks_pb2.TaskTemplate:
        return dynamic[task] if task in dynamic else self.entities[f"task/{task}"].template

    @property
    def _client(self):
        return boto3.client("s3", endpoint_url=self.store.endpoint, **KEYS)

    def _put(self, key: str, message: Message) -> None:
        self._client.put_object(Bucket=BUCKET, Key=key, Body=message.SerializeToString())

    def _get(self, key: str) -> bytes:
        return self._client.get_object(Bucket=BUCKET, Key=key)["Body"].read()

    def _run_nodes(
        self,
        where: str,
        nodes: Iterable[graph_pb2.Node],
        outputs: Iterable[literals_pb2.Binding],
        inputs: Literals,
        dynamic: Mapping[str, tasks_pb2.TaskTemplate],
    ) -> Literals:
        """A graph of nodes; `dynamic` holds the tasks that a dynamic one made, by name."""
        known: dict[str, Literals] = {"": inputs, "start-node": inputs}
        waiting = {node.id: node for node in nodes if node.id not in ("start-node", "end-node")}
        while waiting:
            ready = [
                node
                for node in waiting.values()
                if {*node.upstream_node_ids, *(id_ for each in node.inputs for id_ in _promised(each.binding))}
                <= known.keys()
            ]
            assert ready, f"{where}: nodes wait for each other: {sorted(waiting)}"
            templates = {node.id: self._template(_task_of(node, where), dynamic) for node in ready}
            node = min(ready, key=lambda node: templates[node.id].container.image not in self.first)
            del waiting[node.id]
            bound = {each.var: _resolve(each.binding, known) for each in node.inputs}
            if node.HasField("array_node"):
                fixed = node.array_node.bound_inputs
                known[node.id] = self._run_array(f"{where}/{node.id}", templates[node.id], bound, fixed)
            else:
                known[node.id] = self._run_task(f"{where}/{node.id}", templates[node.id], bound)
        return {each.var: _resolve(each.binding, known) for each in outputs}

    def _run_array(
        self, where: str, template: tasks_pb2.TaskTemplate, inputs: Literals, bound: Iterable[str]
    ) -> Literals:
        """The outputs of all items of an array node, as collections; `bound` are the inputs that every item is given.

        A container finds all items' inputs, and in its environment which of them are its own.
        """
        (size,) = {len(each.collection.literals) for name, each in inputs.items() if name not in bound}
        found: dict[str, list[literals_pb2.Literal]] = {each: [] for each in template.interface.outputs.variables}
        for index in range(size):
            item = tasks_pb2.TaskTemplate()
            item.CopyFrom(template)
            item.id.name = MAPPED.sub(r"\1", template.id.name)
            for key, value in (("BATCH_JOB_ARRAY_INDEX_VAR_NAME", "FLYTE_INDEX"), ("FLYTE_INDEX", str(index))):
                item.container.env.add(key=key, value=value)
            for name, literal in self._run_task(f"{where}[{index}]", item, inputs).items():
                found[name].append(literal)
        return {
            name: literals_pb2.Literal(collection=literals_pb2.LiteralCollection(literals=each))
            for name, each in found.items()
        }

    def _run_task(
        self,
        where: str,
        template: tasks_pb2.TaskTemplate,
        inputs: Literals,
        attempt: Attempt | None = None,
        killed: Arrange | None = None,
    ) -> Literals:
        self.ran.append(f"{where}: {template.id.name}")
        node = template.id.name if attempt else uuid.uuid4().hex
        attempt = attempt or Attempt()
        prefix = f"metadata/{attempt.place(node)}"
        self._put(f"{prefix}/inputs.pb", literals_pb2.LiteralMap(literals=inputs))
        log = self._run_container(template.container, node, attempt, killed)
        written = self.store.keys(f"{prefix}/")
        if f"{prefix}/error.pb" in written:
            error = errors_pb2.ErrorDocument.FromString(self._get(f"{prefix}/error.pb")).error
            recoverable = error.kind == errors_pb2.ContainerError.RECOVERABLE
            raise FailedError(f"{where}: {error.message}\n{log[-3000:]}", recoverable=recoverable)
        if f"{prefix}/futures.pb" in written:
            job = dynamic_job_pb2.DynamicJobSpec.FromString(self._get(f"{prefix}/futures.pb"))
            tasks = {task.id.name: task for task in job.tasks}
            return self._run_nodes(where, job.nodes, job.outputs, inputs, tasks)
        if f"{prefix}/outputs.pb" not in written:
            raise FailedError(f"{where}: no outputs\n{log[-3000:]}", recoverable=True)
        return dict(literals_pb2.LiteralMap.FromString(self._get(f"{prefix}/outputs.pb")).literals)

    def _run_container(
        self, container: tasks_pb2.Container, node: str, attempt: Attempt, killed: Arrange | None
    ) -> str:
        """What a container prints; its folder, with home and temporary files, is new and gone afterwards."""
        prefix, raw = f"s3://{BUCKET}/metadata/{attempt.place(node)}", f"{self.store.prefix}/{attempt.place(node)}"
        known = {
            "{{.input}}": f"{prefix}/inputs.pb",
            "{{.outputPrefix}}": prefix,
            "{{.rawOutputDataPrefix}}": raw,
            "{{.checkpointOutputPrefix}}": f"{raw}/_flytecheckpoints",
            "{{.prevCheckpointPrefix}}": '""',
        }
        if attempt.number:
            earlier = Attempt(attempt.execution, attempt.number - 1)
            known["{{.prevCheckpointPrefix}}"] = f"{self.store.prefix}/{earlier.place(node)}/_flytecheckpoints"
        programs = self.environments[container.image]
        command = [known.get(part, part) for part in (*container.command, *container.args)]
        pod = Path(tempfile.mkdtemp(prefix="pod-"))  # a short path: sockets lie below it
        try:
            for name in ("home", "tmp", "root"):
                (pod / name).mkdir()
            self.make_folder(pod / "root")
            environment = {
                "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
                "HOME": str(pod / "home"),
                "TMPDIR": str(pod / "tmp"),
                # see tests/conftest.py
                **{name: os.environ[name] for name in ("VLLM_CACHE_ROOT", "RAY_worker_niceness")},
                "PYTHONPATH": str(pod / "root"),  # an image has the project installed
                "FLYTE_INTERNAL_EXECUTION_PROJECT": "rlvr",
                "FLYTE_INTERNAL_EXECUTION_DOMAIN": "development",
                "FLYTE_INTERNAL_EXECUTION_ID": attempt.execution,
                "FLYTE_ATTEMPT_NUMBER": str(attempt.number),
                "FLYTE_INTERNAL_IMAGE": container.image,  # as images/Dockerfile sets it, and the next
                "RLVR_ACCELERATOR": "none",
                **self.store.environment,  # for Flyte's files; the next three for files that a source names
                "AWS_ENDPOINT_URL": self.store.endpoint,
                "AWS_ACCESS_KEY_ID": KEYS["aws_access_key_id"],
                "AWS_SECRET_ACCESS_KEY": KEYS["aws_secret_access_key"],
                **{each.key: each.value for each in container.env},
                **self.variables,
            }
            with (pod / "log").open("w") as log:
                process = subprocess.Popen(
                    command, cwd=pod / "root", env=environment, stdout=log, stderr=subprocess.STDOUT
                )
                try:
                    with killed(lambda: _kill(process.pid, pod)) if killed else nullcontext():
                        process.wait()
                finally:
                    if process.poll() is None:  # the test's time is over, or a person interrupts it
                        _kill(process.pid, pod)
            return (pod / "log").read_text()
        finally:
            shutil.rmtree(pod, ignore_errors=True)


def _kill(pid: int, pod: Path) -> None:
    """SIGKILL to all processes of a container at once, and then to those that are nobody's children any more."""
    first = psutil.Process(pid)
    first.suspend()
    found = [first, *first.children(recursive=True)]
    while found:
        for process in found:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(found, 10)
        found = [each for each in psutil.process_iter() if _lives_in(each, pod)]


def _lives_in(process: psutil.Process, pod: Path) -> bool:
    with suppress(psutil.Error):
        return process.environ().get("HOME") == str(pod / "home") and process.status() != psutil.STATUS_ZOMBIE
    return False


def _task_of(node: graph_pb2.Node, where: str) -> str:
    """The name of a node's task, or of the one that it maps."""
    inner = node.array_node.node if node.HasField("array_node") else node
    assert inner.HasField("task_node"), f"{where}: {node.id} is no task"
    return inner.task_node.reference_id.name


def _promised(binding: literals_pb2.BindingData) -> set[str]:
    """The nodes whose outputs a binding takes."""
    match binding.WhichOneof("value"):
        case "promise":
            return {binding.promise.node_id}
        case "collection":
            return set().union(*map(_promised, binding.collection.bindings))
        case "map":
            return set().union(*map(_promised, binding.map.bindings.values()))
    return set()


def _resolve(binding: literals_pb2.BindingData, known: Mapping[str, Literals]) -> literals_pb2.Literal:
    """The value of a binding, from the outputs of the nodes that it names."""
    match binding.WhichOneof("value"):
        case "promise":
            assert not binding.promise.attr_path, "attributes of outputs are not known here"
            return known[binding.promise.node_id][binding.promise.var]
        case "collection":
            items = [_resolve(each, known) for each in binding.collection.bindings]
            return literals_pb2.Literal(collection=literals_pb2.LiteralCollection(literals=items))
        case "map":
            values = {key: _resolve(each, known) for key, each in binding.map.bindings.items()}
            return literals_pb2.Literal(map=literals_pb2.LiteralMap(literals=values))
        case "scalar":
            return literals_pb2.Literal(scalar=binding.scalar)
    raise AssertionError(f"a binding of nothing: {binding}")
