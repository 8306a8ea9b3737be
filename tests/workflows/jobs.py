"""What Flyte's backend sees of tasks: the job of a dynamic task, the literals of inputs, and the keys of its cache."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

from flyteidl.core import dynamic_job_pb2, literals_pb2, tasks_pb2
from flytekit import FlyteContext, FlyteContextManager
from flytekit.configuration import Image, ImageConfig, SerializationSettings
from flytekit.core.context_manager import ExecutionState
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine
from flytekit.models.literals import Literal, LiteralMap
from flytekit.tools.translator import get_serializable

IMAGES = {name: Image(name, f"registry.example/{name}", "v1") for name in ("data", "generation", "training")}
SETTINGS = SerializationSettings(
    project="p", domain="d", version="v", image_config=ImageConfig(IMAGES["data"], list(IMAGES.values()))
)

Literals = dict[str, literals_pb2.Literal]


def in_a_pod() -> FlyteContext.Builder:
    """The context in which a pod runs a task."""
    context = FlyteContextManager.current_context()
    user = context.user_space_params.builder()
    user.output_metadata_prefix = context.file_access.get_random_local_directory()  # of the deck
    mode = ExecutionState.Mode.TASK_EXECUTION
    state = context.new_execution_state().with_params(mode=mode, user_space_params=user.build())
    return context.with_serialization_settings(SETTINGS).with_execution_state(state)


def literals(task: PythonFunctionTask, **inputs: Any) -> Literals:
    """The inputs of a task as a client sends them, with the hashes that their types ask for."""
    given = task.python_interface.default_inputs_as_kwargs | inputs
    types = {name: kind for name, kind in task.python_interface.inputs.items() if name in given}
    context = FlyteContextManager.current_context()
    return dict(TypeEngine.dict_to_literal_map(context, given, types).to_flyte_idl().literals)


def run(task: PythonFunctionTask, inputs: Literals) -> Literals | dynamic_job_pb2.DynamicJobSpec:
    """What a pod writes that runs a task: its outputs, or the job of a dynamic one."""
    if task.execution_mode is task.ExecutionBehavior.DYNAMIC:
        task._wf = None  # a pod compiles it once
    with FlyteContextManager.with_context(in_a_pod()) as context:
        message = LiteralMap({name: Literal.from_flyte_idl(value) for name, value in inputs.items()})
        written = task.dispatch_execute(context, message).to_flyte_idl()
    return written if isinstance(written, dynamic_job_pb2.DynamicJobSpec) else dict(written.literals)


def template(task: PythonFunctionTask) -> tasks_pb2.TaskTemplate:
    """A task as it is registered."""
    return get_serializable({}, SETTINGS, task).template.to_flyte_idl()


def key(task: tasks_pb2.TaskTemplate, inputs: Mapping[str, literals_pb2.Literal]) -> str:
    """The key of a result in the backend's cache.

    It has the task's name, its version for the cache, its interface, and its inputs: of one with a hash the hash alone,
    of the items of a list each by itself, and none of those that the task ignores.
    """
    ignored = set(task.metadata.cache_ignore_input_vars)
    counted = {name: _hashed(value) for name, value in inputs.items() if name not in ignored}
    parts = (
        task.id.name.encode(),
        task.metadata.discovery_version.encode(),
        task.interface.SerializeToString(deterministic=True),
        literals_pb2.LiteralMap(literals=counted).SerializeToString(deterministic=True),
    )
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def _hashed(literal: literals_pb2.Literal) -> literals_pb2.Literal:
    if literal.hash:
        return literals_pb2.Literal(hash=literal.hash)
    if literal.HasField("collection"):
        items = [_hashed(item) for item in literal.collection.literals]
        return literals_pb2.Literal(collection=literals_pb2.LiteralCollection(literals=items))
    return literal


def is_static(binding: literals_pb2.BindingData) -> bool:
    """Whether a value is bound, and not the output of a node."""
    if binding.HasField("collection"):
        return any(map(is_static, binding.collection.bindings))
    return not binding.HasField("promise")
