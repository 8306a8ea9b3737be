"""Against a Flyte backend, as its admin API tells it: from registration to the report, the cache, kills and `recover`.

They are skipped where no backend is named; `flytectl demo start` makes one, and images/Dockerfile what its pods run.

    RLVR_BACKEND          flytekit's configuration file, with `images:` for data, generation and training
    RLVR_BACKEND_PROJECT  where to register and run; flytesnacks without it
    RLVR_BACKEND_DOMAIN   development without it
    RLVR_BACKEND_KILL     a shell command that ends a node's running container with SIGKILL; it finds the names in
                          $EXECUTION, $NODE, the node's in its workflow, and $NODE_EXECUTION, which is another one
                          within a dynamic task. Tests that kill are skipped without it. Where pods are Kubernetes':
                          kubectl -n flytesnacks-development delete pod --grace-period=0 --force \\
                              -l execution-id=$EXECUTION,node-id=$NODE

    RLVR_BACKEND=~/.flyte/config-sandbox.yaml pytest tests/backend

Reading what a run left needs access to the backend's blob storage, by flytekit's variables (FLYTE_AWS_ENDPOINT, say).
The runs are the quickstart's with fewer steps, so that each one with a seed of its own trains anew.
"""

import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest
from flyteidl.core.catalog_pb2 import CACHE_HIT
from flyteidl.core.execution_pb2 import TaskExecution
from flytekit import FlyteContextManager
from flytekit.clients.helpers import iterate_node_executions, iterate_task_executions
from flytekit.configuration import Config
from flytekit.core.type_engine import TypeEngine
from flytekit.models.common import RawOutputDataConfig
from flytekit.models.core.execution import NodeExecutionPhase, WorkflowExecutionPhase
from flytekit.models.literals import Literal
from flytekit.remote import FlyteRemote
from flytekit.tools.translator import Options

from tasks.inputs.files import load_quickstart
from tasks.mixing.spec import MixtureSpec
from tasks.tables.schemas import StageSummary
from tests.paths import ROOT
from workflows.rlvr import Results

WORKFLOW = "workflows.rlvr.rlvr"
TRAINING = "learn"
"""The node of `train_policy`, in a dynamic task."""
MIXING = "tasks.mixing.task.mix_prompts"
UNCACHED = {"preflight", "report"}
"""Nodes that are never cached: they look at files or at the run."""
PARTS = {"model", "model-check", "data", "train", "evaluation"}
"""All others of a run: where these are cached, no node in them exists."""

CONFIGURATION = os.environ.get("RLVR_BACKEND")
KILL = os.environ.get("RLVR_BACKEND_KILL")
HOURS = 3600

pytestmark = [
    pytest.mark.skipif(CONFIGURATION is None, reason="RLVR_BACKEND names no backend"),
    pytest.mark.timeout(4 * HOURS),
]
kills = pytest.mark.skipif(KILL is None, reason="RLVR_BACKEND_KILL says no way to kill a pod")


class Backend:
    """The project as registered there under a version of its own."""

    def __init__(self) -> None:
        project = os.environ.get("RLVR_BACKEND_PROJECT", "flytesnacks")
        domain = os.environ.get("RLVR_BACKEND_DOMAIN", "development")
        self.remote = FlyteRemote(Config.auto(CONFIGURATION), default_project=project, default_domain=domain)
        self.client = self.remote.client
        self.version = f"test-{uuid.uuid4().hex[:8]}"
        self.seed = int(self.version[-4:], 16)  # what earlier tests trained is no cache hit
        command = [str(Path(sys.executable).with_name("pyflyte")), "--config", CONFIGURATION, "register", "workflows"]
        where = ["--project", project, "--domain", domain, "--version", self.version, "--copy", "all"]
        done = subprocess.run([*command, *where], cwd=ROOT, capture_output=True, text=True)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]

    def start(self, seed: int, raw_data: str | None = None):
        """Launches a short run; `raw_data` is where its files go."""
        data, training, evaluation = load_quickstart()
        training = training.model_copy(update={"steps": 4, "checkpoint_every": 1, "seed": seed})
        options = Options(raw_output_data_config=RawOutputDataConfig(raw_data) if raw_data else None)
        plan = self.remote.fetch_launch_plan(name=WORKFLOW, version=self.version)
        inputs = {"data": data, "training": training, "evaluation": evaluation}
        with self.remote.remote_context() as context:
            literals = {
                name: TypeEngine.to_literal(context, value, type(value), plan.interface.inputs[name].type)
                for name, value in inputs.items()
            }
        return self.remote.execute(plan, inputs=literals, options=options)

    def phase(self, execution) -> int:
        return self.client.get_execution(execution.id).closure.phase

    def end(self, execution) -> int:
        """Waits for an execution's end: its phase."""
        names = ("SUCCEEDED", "FAILED", "ABORTED", "TIMED_OUT")
        ends = {getattr(WorkflowExecutionPhase, name) for name in names}
        return until(lambda: self.phase(execution) in ends and self.phase(execution))

    def succeeds(self, execution) -> dict[str, Literal]:
        """Waits for an execution's end: its outputs."""
        phase, closure = self.end(execution), self.client.get_execution(execution.id).closure
        assert phase == WorkflowExecutionPhase.SUCCEEDED, closure.error.message
        return self.client.get_execution_data(execution.id).full_outputs.literals

    def nodes(self, execution) -> dict[str, list]:
        """Node executions by the node's name in its workflow, with those within dynamic tasks."""
        found: dict[str, list] = {}
        parents = [None]
        while parents:
            for node in iterate_node_executions(self.client, execution.id, unique_parent_id=parents.pop()):
                found.setdefault(node.metadata.spec_node_id or node.id.node_id, []).append(node)
                if node.metadata.is_parent_node:
                    parents.append(node.id.node_id)
        return {name: nodes for name, nodes in found.items() if name not in ("start-node", "end-node")}

    def attempts(self, node) -> int:
        """How many there have been of a node."""
        return 1 + max((each.id.retry_attempt for each in iterate_task_executions(self.client, node.id)), default=-1)

    def running(self, execution):
        """Waits until training runs: its node."""

        def found():
            assert self.phase(execution) <= WorkflowExecutionPhase.RUNNING, "ended before training"
            nodes = [node for node in self.nodes(execution).get(TRAINING, []) if self.task_phase(node) == "RUNNING"]
            return nodes and nodes[0]

        return until(found)

    def task_phase(self, node) -> str:
        """The phase of a node's newest attempt."""
        newest = max(
            iterate_task_executions(self.client, node.id), key=lambda each: each.id.retry_attempt, default=None
        )
        return TaskExecution.Phase.Name(newest.closure.phase) if newest else "NONE"

    def kill(self, node) -> None:
        names = {
            "EXECUTION": node.id.execution_id.name,
            "NODE": node.metadata.spec_node_id or node.id.node_id,
            "NODE_EXECUTION": node.id.node_id,
        }
        subprocess.run(["/bin/sh", "-c", KILL], env=os.environ | names, check=True)

    def checkpoints(self, raw_data: str) -> set[str]:
        """The complete checkpoints of all runs whose raw outputs are in this bucket."""
        runs = "/".join([*raw_data.split("/")[:3], "rlvr-runs"])
        files = self.remote.file_access.get_filesystem_for_path(runs)
        files.invalidate_cache()
        return {path for path in files.find(runs) if path.endswith("/manifest.json")}

    def training_facts(self, execution) -> dict:
        """What training's summary says."""
        [node] = self.nodes(execution)[TRAINING]
        literal = self.client.get_node_execution_data(node.id).full_outputs.literals["summary"]
        return TypeEngine.to_python_value(FlyteContextManager.current_context(), literal, StageSummary).facts


def until(holds, seconds=3 * HOURS):
    """Waits until `holds()`, and returns what it gave."""
    deadline = time.monotonic() + seconds
    while not (result := holds()):
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(2)
    return result


@pytest.fixture(scope="module")
def backend():
    return Backend()


@pytest.fixture(scope="module")
def first(backend):
    """The first run, and its outputs."""
    execution = backend.start(seed=backend.seed)
    return execution, backend.succeeds(execution)


@pytest.fixture
def own_prefix(backend, first):
    """A place for the files of one run, beside those of the first."""
    address = first[1]["policy"].scalar.blob.uri
    return "/".join([*address.split("/")[:3], "rlvr-tests", uuid.uuid4().hex])


def test_a_run_ends_with_its_results_by_name(backend, first):
    _, outputs = first
    assert set(outputs) == set(Results._fields)
    summary = backend.remote.file_access.get_filesystem_for_path(outputs["summary"].scalar.blob.uri)
    assert json.loads(summary.cat_file(outputs["summary"].scalar.blob.uri))["n"] > 0


def test_a_second_run_is_all_cache_hits(backend, first):
    second = backend.start(seed=backend.seed)
    outputs = backend.succeeds(second)
    assert outputs["policy"].scalar.blob.uri == first[1]["policy"].scalar.blob.uri
    nodes = backend.nodes(second)
    assert nodes.keys() == UNCACHED | PARTS
    for name in PARTS:
        assert {node.closure.task_node_metadata.cache_status for node in nodes[name]} == {CACHE_HIT}, name


def test_one_stage_runs_again_with_another_mixture(backend, first):
    task = backend.remote.fetch_task(name=MIXING, version=backend.version)
    spec = MixtureSpec(seed=backend.seed, heldout=2)
    with backend.remote.remote_context() as context:
        literal = TypeEngine.to_literal(context, spec, MixtureSpec, task.interface.inputs["spec"].type)
    outputs = backend.succeeds(backend.remote.execute(task, inputs={"graded": first[1]["selected"], "spec": literal}))
    assert outputs["mixture"].scalar.blob.uri != first[1]["mixture"].scalar.blob.uri


@kills
def test_training_that_is_killed_before_its_first_checkpoint_begins_again(backend, own_prefix):
    execution = backend.start(seed=backend.seed + 1, raw_data=own_prefix)
    backend.kill(backend.running(execution))
    backend.succeeds(execution)
    [node] = backend.nodes(execution)[TRAINING]
    assert backend.attempts(node) == 2
    assert backend.training_facts(execution)["resumed_from"] == 0


@kills
def test_training_that_is_killed_after_a_checkpoint_goes_on_from_it(backend, own_prefix):
    earlier = backend.checkpoints(own_prefix)
    execution = backend.start(seed=backend.seed + 2, raw_data=own_prefix)
    node = backend.running(execution)
    until(lambda: backend.checkpoints(own_prefix) - earlier)
    backend.kill(node)
    backend.succeeds(execution)
    assert backend.attempts(node) == 2
    assert backend.training_facts(execution)["resumed_from"] > 0


@kills
def test_a_run_whose_training_failed_is_recovered(backend, own_prefix):
    failed = backend.start(seed=backend.seed + 3, raw_data=own_prefix)
    killed = set()

    def ended():
        for node in backend.nodes(failed).get(TRAINING, []):
            attempt = node.id.node_id, backend.attempts(node)
            if attempt not in killed and backend.task_phase(node) == "RUNNING":
                killed.add(attempt)
                backend.kill(node)
        phase = backend.phase(failed)
        assert phase != WorkflowExecutionPhase.SUCCEEDED, "no kill was in time"
        return phase == WorkflowExecutionPhase.FAILED

    backend.running(failed)
    until(ended)
    recovered = backend.client.get_execution(backend.client.recover_execution(failed.id))
    backend.succeeds(recovered)
    nodes = backend.nodes(recovered)
    assert [node.closure.phase for node in nodes["data"]] == [NodeExecutionPhase.RECOVERED]
    assert [node.closure.phase for node in nodes[TRAINING]] == [NodeExecutionPhase.SUCCEEDED]
