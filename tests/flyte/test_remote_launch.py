"""A launch from a checkout on a backend: the same three files as a local run has, and what is registered with them."""

import io
import json
import tarfile

import boto3
import pytest
import s3fs
import yaml
from click.testing import CliRunner
from flytekit import FlyteContextManager
from flytekit.clis.sdk_in_container.pyflyte import main
from google.protobuf.json_format import MessageToDict

from tasks.config.loading import load_yaml
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.tables.content_digest import file_digest, seal
from tests.flyte.admin_stand_in import FILES, admin, as_json
from tests.object_store import BUCKET, KEYS, object_store
from tests.workflows.test_registered_workflows import IMAGES


@pytest.fixture
def backend(tmp_path):
    with admin(tmp_path) as made:
        yield made


def launch(backend, *, files=(), options=()):
    """The three files of the execution that this command line launches; the console's Relaunch has the same."""
    command = ["--config", str(backend.config), "run", "--remote", *options, "workflows/rlvr.py", "rlvr", *files]
    before = FlyteContextManager.current_context()
    done = CliRunner().invoke(main, command)
    assert FlyteContextManager.current_context() is before
    assert done.exit_code == 0, done.output
    inputs = backend.inputs(**FILES)
    assert as_json(backend.relaunched(**FILES)) == as_json(inputs)
    return inputs


@pytest.mark.long
def test_a_recipe_of_ones_own_is_launched_with_the_data_and_evaluation_that_it_names(backend, tmp_path):
    recipe = tmp_path / "my recipe (2).yaml"
    recipe.write_text(yaml.safe_dump({"extends": "grpo", "data": "mbpp", "evaluation": "dapo", "steps": 3}))
    inputs = launch(backend, options=["--copy", "all", "--labels", "data=mine"], files=["--training", str(recipe)])
    assert inputs == {
        "data": load_yaml(DataFile, DATA_SPECS / "mbpp.yaml"),
        "training": load_yaml(Recipe, recipe),
        "evaluation": load_yaml(EvaluationFile, EVALUATIONS / "dapo.yaml"),
    }
    [execution] = backend.executions
    assert dict(execution.spec.labels.values) == {"recipe": "my-recipe-2", "data": "mine", "evaluation": "dapo"}
    assert execution.spec.launch_plan.name == "workflows.rlvr.rlvr"
    # What the nodes of the pipeline itself run in; dynamic tasks bring the others.
    for name in ("preflight", "prepare_model", "compose_data", "compose_training", "compose_evaluation", "report"):
        container = backend.task(name).template.container
        assert container.image == f"registry.example/{IMAGES[name]}:v1"
        requested = MessageToDict(container.resources)
        assert {entry["name"] for entry in requested["requests"]} >= {"CPU", "MEMORY"}
    [archive] = [content for address, content in backend.uploads.items() if address.endswith(".tar.gz")]
    with tarfile.open(fileobj=io.BytesIO(archive)) as sent:
        names = sent.getnames()
    assert {"workflows/rlvr.py", "tasks/flyte/archive.py", "images/lock-cuda.txt"} <= set(names)
    assert not [name for name in names if name.startswith(("tests/", "docs/", "outputs/", "."))]


@pytest.mark.long
def test_a_file_that_is_given_stands_before_the_recipes_own(backend, tmp_path):
    data = tmp_path / "my_data.yaml"
    data.write_text(yaml.safe_dump({"extends": "gsm8k", "mixture": {"heldout": 7}}))
    inputs = launch(backend, files=["--training", '{"extends": "dapo_qwen25_32b"}', "--data", str(data)])
    assert inputs["data"] == load_yaml(DataFile, data)
    assert inputs["evaluation"] == load_yaml(EvaluationFile, EVALUATIONS / "dapo.yaml")


@pytest.mark.long
def test_a_module_that_is_not_sent_is_refused_before_anything_is_uploaded(backend, tmp_path):
    data = tmp_path / "my_data.yaml"
    source = {**load_quickstart()[0].sources[0].model_dump(mode="json"), "transform": "nowhere.rows"}
    data.write_text(yaml.safe_dump({"name": "mine", "sources": [source]}))
    command = ["--config", str(backend.config), "run", "--remote", "--copy", "all", "workflows/rlvr.py", "rlvr"]
    done = CliRunner().invoke(main, [*command, "--data", str(data)])
    assert done.exit_code != 0
    assert "there is no module nowhere in" in done.output + str(done.exception)
    assert not backend.uploads
    assert not backend.executions


@pytest.mark.long
def test_rows_are_sent_once_and_a_folder_travels_with_the_code_or_is_refused(backend, tmp_path):
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"prompt": "1?", "answer": 1}\n')
    source = {"name": "rows", "domain": "math", "verifier": "math", "loader": {"kind": "jsonl", "path": "rows.jsonl"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "sources": [source]}))
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({"extends": "quickstart", "data": "mine.yaml"}))
    for _ in range(2):
        inputs = launch(backend, options=["--copy", "all"], files=["--training", str(recipe)])
        sent = inputs["data"].sources[0].loader.path
        assert backend.uploads[sent.address] == rows.read_bytes()
        assert sent.named == str(rows)
    assert backend.received.count(sent.address) == 1
    for path, refused in (("data_specs", False), (str(tmp_path), True)):
        harness = [{"name": "mine", "tasks": ["mine"], "include_path": path}]
        evaluation = json.dumps({"extends": "quickstart", "harness": harness})
        command = ["--config", str(backend.config), "run", "--remote", "--copy", "all", "workflows/rlvr.py", "rlvr"]
        done = CliRunner().invoke(main, [*command, "--evaluation", evaluation])
        assert (done.exit_code != 0) == refused, done.output
        assert ("a folder of this machine" in done.output + str(done.exception)) == refused


@pytest.mark.long
def test_without_files_the_quickstart_is_launched(backend):
    assert tuple(launch(backend).values()) == load_quickstart()
    [execution] = backend.executions
    assert set(execution.spec.labels.values.values()) == {"quickstart"}
    assert set(execution.spec.labels.values) == {"recipe", "data", "evaluation"}


@pytest.mark.long
def test_the_console_has_a_description_of_the_workflow_and_of_each_task(backend):
    launch(backend)
    [workflow] = backend.workflows.values()
    assert workflow.description.long_description.value.startswith("Train a model with verifiable rewards")
    descriptions = {name: spec.description for (name, _), spec in backend.tasks.items()}
    assert all(description.long_description.value for description in descriptions.values())
    data = descriptions["workflows.data.compose_data"].long_description.value
    assert data.startswith("Make the training mixture")
    assert "Args" not in data


@pytest.mark.long
def test_an_address_on_the_command_line_is_read_by_the_storage_of_the_configuration(backend, tmp_path, monkeypatch):
    for name in ("AWS_ENDPOINT_URL", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    s3fs.S3FileSystem.clear_instance_cache()
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}")
    seal(tmp_path / "model")
    with object_store() as store:
        client = boto3.client("s3", endpoint_url=store.endpoint, **KEYS)
        for path in (tmp_path / "model").iterdir():
            client.upload_file(str(path), BUCKET, f"model/{path.name}")
        connection = {"endpoint": store.endpoint, "access-key": "test", "secret-key": "test"}
        with backend.config.open("a") as config:
            config.write(yaml.safe_dump({"storage": {"connection": connection}}))
        command = ["--config", str(backend.config), "run", "--remote", "workflows/checking.py", "checking"]
        done = CliRunner().invoke(main, [*command, "--model", f"s3://{BUCKET}/model"])
    assert done.exit_code == 0, done.output
    [execution] = backend.executions
    assert execution.inputs.literals["model"].hash == file_digest(tmp_path / "model")
