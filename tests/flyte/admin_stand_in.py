"""A stand-in for Flyte's admin on this machine: it records what a client registers, uploads and launches.

It runs nothing. It has the calls of the two gRPC services of `flyteidl` that `pyflyte run --remote` and `pyflyte
register` make, and an HTTP server behind its signed addresses.
"""

from __future__ import annotations

import json
from base64 import b64decode
from collections.abc import Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import grpc
import msgpack
from flyteidl.admin import common_pb2, execution_pb2, launch_plan_pb2, project_pb2, task_pb2, workflow_pb2
from flyteidl.core import compiler_pb2, identifier_pb2, literals_pb2
from flyteidl.core import execution_pb2 as core_execution_pb2
from flyteidl.service import admin_pb2_grpc, dataproxy_pb2, dataproxy_pb2_grpc
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal
from google.protobuf.json_format import MessageToDict, ParseDict
from google.protobuf.message import Message
from google.protobuf.struct_pb2 import Struct
from pydantic import BaseModel

import tasks.flyte.stages  # noqa: F401 - patches flytekit, as it is in every pod
from tasks.inputs.files import DataFile, EvaluationFile, Recipe

FILES = {"data": DataFile, "training": Recipe, "evaluation": EvaluationFile}
"""The files that a workflow takes, by the name of the input."""
IMAGES = "images:\n  default: registry.example/default:v1\n  data: registry.example/data:v1\n"
IMAGES += "  generation: registry.example/generation:v1\n  training: registry.example/training:v1\n"
"""The images that the client's configuration names."""


def _key(entity: identifier_pb2.Identifier) -> tuple[str, str]:
    return entity.name, entity.version


PAGE = 4
"""Largest number of names in an answer."""
PROJECTS = ("flytesnacks", "research")
DOMAINS = ("development", "production")
"""The projects of the backend, and the domains of each."""
STARTED = "2026-11-26T10:20:30Z"
"""Start of every execution that has ended."""


@dataclass
class Ended:
    """An execution that has ended, with its literals by name."""

    outputs: dict[str, literals_pb2.Literal]
    inputs: dict[str, literals_pb2.Literal] = field(default_factory=dict)
    phase: int = core_execution_pb2.WorkflowExecution.SUCCEEDED


@dataclass
class Admin:
    """What clients sent.

    Attributes:
        tasks: specifications by name and version; `workflows` and `launch_plans` likewise.
        executions: what was launched, in order.
        uploads: bytes by the address that stands for them, which links for downloads lead to as well.
        received: the address of each upload, in order.
        outputs: literals by the address that the console shows, which tests fill in.
        ended: executions that have ended, by name, which tests fill in.
        files: bytes by their address on blob storage, behind the links for downloads; tests fill them in.
        config: a configuration file of `pyflyte --config` that names this backend.
        http: the address of the files' server; below `/denied` it takes nothing.
        refusal: status and details that every call is answered with; None: calls are answered.
        unsigned: the beginning of addresses for which no link is signed, as for a bucket of another account.
    """

    config: Path
    tasks: dict[tuple[str, str], task_pb2.TaskSpec] = field(default_factory=dict)
    workflows: dict[tuple[str, str], workflow_pb2.WorkflowSpec] = field(default_factory=dict)
    launch_plans: dict[tuple[str, str], launch_plan_pb2.LaunchPlanSpec] = field(default_factory=dict)
    executions: list[execution_pb2.ExecutionCreateRequest] = field(default_factory=list)
    uploads: dict[str, bytes] = field(default_factory=dict)
    received: list[str] = field(default_factory=list)
    outputs: dict[str, literals_pb2.Literal] = field(default_factory=dict)
    ended: dict[str, Ended] = field(default_factory=dict)
    files: dict[str, bytes] = field(default_factory=dict)
    http: str = ""
    refusal: tuple[grpc.StatusCode, str] | None = None
    unsigned: str | None = None

    def task(self, name: str) -> task_pb2.TaskSpec:
        """The specification of the one registered task whose name ends in `.name`."""
        [spec] = [spec for (full, _), spec in self.tasks.items() if full.endswith(f".{name}")]
        return spec

    def inputs(self, execution: int = -1, **kinds: type) -> dict[str, object]:
        """Inputs of an execution as values of these types, by name."""
        return values(self.executions[execution].inputs.literals, kinds)

    def relaunched(self, execution: int = -1, **kinds: type) -> dict[str, object]:
        """Inputs of an execution that the console launches again with what its form shows of this one."""
        shown = self.executions[execution].inputs.literals
        return values({name: console_form(literal) for name, literal in shown.items()}, kinds)


def values(literals: Mapping[str, literals_pb2.Literal], kinds: Mapping[str, type]) -> dict[str, object]:
    """Values of literals by name, as a task gets them."""
    context = FlyteContextManager.current_context()
    return {
        name: TypeEngine.to_python_value(context, Literal.from_flyte_idl(literals[name]), kind)
        for name, kind in kinds.items()
    }


def as_json(files: Mapping[str, BaseModel]) -> dict[str, str]:
    """The text of each file, in which 24 and 24.0 differ."""
    return {name: json.dumps(file.model_dump(mode="json"), sort_keys=True) for name, file in files.items()}


def console_form(literal: literals_pb2.Literal) -> literals_pb2.Literal:
    """The literal that the console's form sends for one that it shows: a `Struct`, in which all numbers are doubles."""
    scalar = literal.scalar
    shown = msgpack.unpackb(scalar.binary.value) if scalar.HasField("binary") else MessageToDict(scalar.generic)
    return literals_pb2.Literal(scalar=literals_pb2.Scalar(generic=ParseDict(shown, Struct())))


class _Service(admin_pb2_grpc.AdminServiceServicer):
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def CreateTask(self, request, context):  # noqa: N802 the names of the calls
        self._create(self._admin.tasks, request, context)
        return task_pb2.TaskCreateResponse()

    def CreateWorkflow(self, request, context):  # noqa: N802
        self._create(self._admin.workflows, request, context)
        return workflow_pb2.WorkflowCreateResponse()

    def CreateLaunchPlan(self, request, context):  # noqa: N802
        self._create(self._admin.launch_plans, request, context)
        return launch_plan_pb2.LaunchPlanCreateResponse()

    def UpdateLaunchPlan(self, request, context):  # noqa: N802
        return launch_plan_pb2.LaunchPlanUpdateResponse()

    def GetTask(self, request, context):  # noqa: N802
        spec = self._get(self._admin.tasks, request.id, context)
        return task_pb2.Task(id=request.id, closure=task_pb2.TaskClosure(compiled_task={"template": spec.template}))

    def GetWorkflow(self, request, context):  # noqa: N802
        spec = self._get(self._admin.workflows, request.id, context)
        used = [node.task_node.reference_id for node in spec.template.nodes if node.HasField("task_node")]
        compiled = compiler_pb2.CompiledWorkflowClosure(
            primary={"template": spec.template},
            tasks=[{"template": self._admin.tasks[_key(task)].template} for task in used],
        )
        return workflow_pb2.Workflow(id=request.id, closure={"compiled_workflow": compiled})

    def GetLaunchPlan(self, request, context):  # noqa: N802
        return launch_plan_pb2.LaunchPlan(
            id=request.id, spec=self._get(self._admin.launch_plans, request.id, context), closure={}
        )

    def ListLaunchPlans(self, request, context):  # noqa: N802
        found = [
            launch_plan_pb2.LaunchPlan(
                id=identifier_pb2.Identifier(
                    resource_type=identifier_pb2.LAUNCH_PLAN,
                    project=request.id.project,
                    domain=request.id.domain,
                    name=name,
                    version=version,
                ),
                spec=spec,
                closure={},
            )
            for (name, version), spec in reversed(self._admin.launch_plans.items())
            if name == request.id.name
        ]
        return launch_plan_pb2.LaunchPlanList(launch_plans=found[: request.limit])

    def ListLaunchPlanIds(self, request, context):  # noqa: N802
        names = sorted({name for name, _ in self._admin.launch_plans})
        begin = int(request.token or 0)
        end = begin + min(request.limit, PAGE)
        found = [{"project": request.project, "domain": request.domain, "name": name} for name in names[begin:end]]
        return common_pb2.NamedEntityIdentifierList(entities=found, token=str(end) if end < len(names) else "")

    def ListProjects(self, request, context):  # noqa: N802
        return project_pb2.Projects(projects=[{"id": name, "name": name} for name in PROJECTS])

    def GetDomains(self, request, context):  # noqa: N802
        return project_pb2.GetDomainsResponse(domains=[{"id": name, "name": name} for name in DOMAINS])

    def CreateExecution(self, request, context):  # noqa: N802
        self._admin.executions.append(request)
        name = request.name or f"e{len(self._admin.executions)}"
        return execution_pb2.ExecutionCreateResponse(
            id={"project": request.project, "domain": request.domain, "name": name}
        )

    def GetExecution(self, request, context):  # noqa: N802
        if request.id.name in self._admin.ended:
            closure = execution_pb2.ExecutionClosure(phase=self._admin.ended[request.id.name].phase)
            closure.started_at.FromJsonString(STARTED)
            return execution_pb2.Execution(id=request.id, spec={}, closure=closure)
        if not self._admin.executions:
            context.abort(grpc.StatusCode.NOT_FOUND, "missing entity of type execution")
        spec = self._admin.executions[-1].spec
        return execution_pb2.Execution(id=request.id, spec=spec, closure={})

    def GetExecutionData(self, request, context):  # noqa: N802
        ended = self._admin.ended[request.id.name]
        return execution_pb2.WorkflowExecutionGetDataResponse(
            full_inputs={"literals": ended.inputs}, full_outputs={"literals": ended.outputs}
        )

    @staticmethod
    def _create(registered: dict, request: Message, context: grpc.ServicerContext) -> None:
        if registered.setdefault(_key(request.id), request.spec) != request.spec:
            context.abort(grpc.StatusCode.ALREADY_EXISTS, f"{request.id.name} is registered and differs")

    @staticmethod
    def _get(registered: dict, entity: identifier_pb2.Identifier, context: grpc.ServicerContext) -> Message:
        if _key(entity) not in registered:
            context.abort(grpc.StatusCode.NOT_FOUND, f"missing entity {entity.name}")
        return registered[_key(entity)]


class _DataProxy(dataproxy_pb2_grpc.DataProxyServiceServicer):
    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def CreateUploadLocation(self, request, context):  # noqa: N802
        path = "/".join((request.filename_root or request.content_md5.hex(), request.filename))
        return dataproxy_pb2.CreateUploadLocationResponse(
            signed_url=f"{self._admin.http}/{path}", native_url=f"s3://uploads/{path}"
        )

    def CreateDownloadLocation(self, request, context):  # noqa: N802
        if self._admin.unsigned and request.native_url.startswith(self._admin.unsigned):
            context.abort(grpc.StatusCode.INTERNAL, "failed to get signed url")
        path = request.native_url.removeprefix("s3://")
        return dataproxy_pb2.CreateDownloadLocationResponse(signed_url=f"{self._admin.http}/{path}?signature=x")

    def GetData(self, request, context):  # noqa: N802
        if request.flyte_url not in self._admin.outputs:
            context.abort(grpc.StatusCode.NOT_FOUND, "missing entity of type execution")
        return dataproxy_pb2.GetDataResponse(literal=self._admin.outputs[request.flyte_url])


class _Refusing(grpc.ServerInterceptor):
    """Answers every call with the refusal of the stand-in, while it has one."""

    def __init__(self, admin: Admin) -> None:
        self._admin = admin

    def intercept_service(self, continuation, details):
        refusal = self._admin.refusal
        if refusal is None:
            return continuation(details)
        return grpc.unary_unary_rpc_method_handler(lambda _, context: context.abort(*refusal))


def _uploads(admin: Admin) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            content = self.rfile.read(int(self.headers["Content-Length"]))
            is_whole = md5(content).digest() == b64decode(self.headers["Content-MD5"])  # noqa: S324
            is_denied = self.path.startswith("/denied")
            admin.received.append(f"s3://uploads{self.path}")
            if is_whole and not is_denied:
                admin.uploads[f"s3://uploads{self.path}"] = content
            self.send_response(403 if is_denied else 200 if is_whole else 400)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def do_GET(self) -> None:
            content = (admin.files | admin.uploads).get(f"s3:/{self.path.partition('?')[0]}")
            self.send_response(404 if content is None else 200)
            self.send_header("Content-Length", str(len(content or b"")))
            self.end_headers()
            self.wfile.write(content or b"")

        def log_message(self, *_: object) -> None:
            """Logs nothing."""

    return Handler


@contextmanager
def admin(folder: Path) -> Iterator[Admin]:
    """Run a stand-in whose configuration file is in `folder`."""
    made = Admin(folder / "config.yaml")
    files = ThreadingHTTPServer(("127.0.0.1", 0), _uploads(made))
    made.http = f"http://127.0.0.1:{files.server_port}"
    Thread(target=files.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
    server = grpc.server(futures.ThreadPoolExecutor(4), interceptors=[_Refusing(made)])
    admin_pb2_grpc.add_AdminServiceServicer_to_server(_Service(made), server)
    dataproxy_pb2_grpc.add_DataProxyServiceServicer_to_server(_DataProxy(made), server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    made.config.write_text(f"admin:\n  endpoint: dns:///127.0.0.1:{port}\n  insecure: true\n{IMAGES}")
    try:
        yield made
    finally:
        server.stop(None)
        files.shutdown()
        files.server_close()
