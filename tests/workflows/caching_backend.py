"""A backend with a cache, in this process: workflows run as `propeller` runs them, and results are kept by their keys.

Tasks run as they would in pods (`jobs.run`), with inputs and outputs on an object store.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

import s3fs
from flyteidl.core import dynamic_job_pb2, literals_pb2, tasks_pb2
from flytekit import FlyteContextManager
from flytekit.core.context_manager import FlyteEntities
from flytekit.core.python_function_task import PythonFunctionTask
from flytekit.core.type_engine import TypeEngine
from flytekit.core.workflow import WorkflowBase
from flytekit.models.literals import Literal, LiteralMap
from flytekit.tools.translator import get_serializable

from tests.workflows.jobs import SETTINGS, Literals, key, literals, run, template
from tests.workflows.propeller import MAPPED, Propeller


@dataclass
class CachingBackend(Propeller):
    """Runs workflows and single tasks.

    Attributes:
        cache: outputs by key.
        overwrites: whether the execution that runs takes nothing from the cache, and writes to it all the same.
        given: the inputs that each task had last, by its name without the module.
    """

    cache: dict[str, Literals] = field(default_factory=dict)
    overwrites: bool = False
    given: dict[str, Literals] = field(default_factory=dict)

    def launch(self, workflow: WorkflowBase, inputs: Literals) -> Literals:
        """The outputs of a workflow; `ran` then has the tasks that ran, those in the cache left out."""
        self.ran.clear()
        registered: dict[object, object] = {}
        graph = get_serializable(registered, SETTINGS, workflow).template.to_flyte_idl()
        for entity in registered.values():
            if hasattr(entity, "template") and hasattr(entity.template, "container"):
                self.entities[f"task/{entity.template.id.name}"] = entity.to_flyte_idl()
        return self._run_nodes(workflow.name, graph.nodes, graph.outputs, inputs, {})

    def overwrite(self, task: PythonFunctionTask) -> None:
        """`pyflyte run --remote --overwrite-cache` of a task, on the inputs that the console shows of its last run."""
        context, shown = FlyteContextManager.current_context(), self.given[task.name.rpartition(".")[2]]
        message = LiteralMap({name: Literal.from_flyte_idl(value) for name, value in shown.items()})
        values = TypeEngine.literal_map_to_kwargs(context, message, task.python_interface.inputs)
        self.overwrites = True
        try:
            self._run_task(task.name, template(task), literals(task, **values))
        finally:
            self.overwrites = False

    def _run_task(self, where: str, started: tasks_pb2.TaskTemplate, inputs: Literals, *_: object) -> Literals:
        name, place = started.id.name, key(started, inputs) if started.metadata.discoverable else None
        self.given[name.rpartition(".")[2]] = inputs
        if place in self.cache and not self.overwrites:
            return self.cache[place]
        self.ran.append(name.rpartition(".")[2])
        s3fs.S3FileSystem.clear_instance_cache()  # a pod has listed nothing yet
        [task] = [each for each in FlyteEntities.entities if isinstance(each, PythonFunctionTask) and each.name == name]
        outputs = run(task, inputs)
        if isinstance(outputs, dynamic_job_pb2.DynamicJobSpec):
            tasks = {each.id.name: each for each in outputs.tasks}
            outputs = self._run_nodes(where, outputs.nodes, outputs.outputs, inputs, tasks)
        if place is not None:
            self.cache[place] = outputs
        return outputs

    def _run_array(
        self, where: str, started: tasks_pb2.TaskTemplate, inputs: Literals, bound: Iterable[str]
    ) -> Literals:
        """The outputs of all items of an array node, each of which is cached by itself."""
        item = tasks_pb2.TaskTemplate()
        item.CopyFrom(started)
        item.id.name = MAPPED.sub(r"\1", started.id.name)
        (size,) = {len(each.collection.literals) for name, each in inputs.items() if name not in bound}
        found: dict[str, list[literals_pb2.Literal]] = {each: [] for each in started.interface.outputs.variables}
        for index in range(size):
            given = {name: each if name in bound else each.collection.literals[index] for name, each in inputs.items()}
            for name, literal in self._run_task(f"{where}[{index}]", item, given).items():
                found[name].append(literal)
        return {
            name: literals_pb2.Literal(collection=literals_pb2.LiteralCollection(literals=each))
            for name, each in found.items()
        }
