"""Executions from the command line: a registered launch plan with files of one's own, and results brought here."""

import json
import subprocess
import sys

import pytest
import yaml
from flyteidl.core import execution_pb2, literals_pb2, types_pb2
from flytekit import FlyteContextManager
from flytekit.core.type_engine import TypeEngine
from google.protobuf.struct_pb2 import Struct

from tasks.config.loading import load_yaml
from tasks.inputs.files import DATA_SPECS, EVALUATIONS, DataFile, EvaluationFile, Recipe, load_quickstart
from tasks.inputs.user_modules import MODULES
from tasks.lineage.user_code import user_code_digest
from tasks.sourcing.loader_specs import JsonlLoader
from tasks.storage.sent_files import SentFile
from tasks.tables.content_digest import MANIFEST, seal
from tests.flyte.admin_stand_in import FILES, Ended, admin, as_json
from tests.paths import ROOT

STORED = "s3://bucket/raw/a1b2"
SUMMARY = {
    "title": "mine",
    "seconds": 300,
    "stages": {},
    "before": 0.25,
    "after": 0.5,
    "gain": 0.25,
    "gain_low": 0.125,
    "gain_high": 0.375,
}


@pytest.fixture(scope="module")
def registered(tmp_path_factory):
    """A backend on which every launch plan is registered."""
    with admin(tmp_path_factory.mktemp("backend")) as made:
        done = pyflyte(made, "register", "workflows", "--copy", "all", "--version", "v1")
        assert done.returncode == 0, done.stdout + done.stderr
        yield made


@pytest.fixture
def backend(tmp_path):
    with admin(tmp_path) as made:
        yield made


def run(backend, command, *arguments, cwd=ROOT):
    return called(["-m", "tasks.commands", command, *arguments, "--config", str(backend.config)], cwd)


def pyflyte(backend, *arguments):
    main = "from flytekit.clis.sdk_in_container.pyflyte import main; main()"
    return called(["-c", main, "--config", str(backend.config), *arguments], ROOT)


def called(arguments, cwd):
    return subprocess.run([sys.executable, *arguments], capture_output=True, text=True, cwd=cwd, timeout=170)


@pytest.mark.long
def test_a_registered_launch_plan_takes_a_recipe_of_ones_own(registered, tmp_path):
    recipe = tmp_path / "my_recipe.yaml"
    recipe.write_text(yaml.safe_dump({"extends": "grpo", "data": "mbpp", "evaluation": "dapo", "steps": 3}))
    done = run(registered, "launch", "rlvr_quickstart", "--training", str(recipe))
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("launched    http")
    assert registered.inputs(**FILES) == {
        "data": load_yaml(DataFile, DATA_SPECS / "mbpp.yaml"),
        "training": load_yaml(Recipe, recipe),
        "evaluation": load_yaml(EvaluationFile, EVALUATIONS / "dapo.yaml"),
    }
    assert as_json(registered.relaunched(**FILES)) == as_json(registered.inputs(**FILES))
    execution = registered.executions[-1]
    assert (execution.spec.launch_plan.name, execution.spec.launch_plan.version) == ("rlvr_quickstart", "v1")
    assert dict(execution.spec.labels.values) == {"recipe": "my_recipe", "data": "mbpp", "evaluation": "dapo"}


@pytest.mark.long
def test_the_versions_of_the_users_modules_are_sent_with_the_execution(registered, tmp_path):
    source = {**load_quickstart()[0].sources[0].model_dump(mode="json"), "transform": "data_specs.transforms.dapo"}
    data = tmp_path / "mine.yaml"
    data.write_text(yaml.safe_dump({"name": "mine", "sources": [source]}))
    done = run(registered, "launch", "rlvr_quickstart", "--data", str(data))
    assert done.returncode == 0, done.stderr
    sent = {each.key: each.value for each in registered.executions[-1].spec.envs.values}
    assert json.loads(sent[MODULES]) == {"data_specs.transforms": user_code_digest("data_specs.transforms")}


@pytest.mark.long
def test_the_rows_of_a_data_file_are_sent_and_a_folder_is_refused(registered, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "answer": 1}\n')
    source = {"name": "rows", "domain": "math", "verifier": "math", "loader": {"kind": "jsonl", "path": "rows.jsonl"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "sources": [source]}))
    (tmp_path / "recipe.yaml").write_text(yaml.safe_dump({"extends": "quickstart", "data": "mine.yaml"}))
    done = run(registered, "launch", "rlvr_quickstart", "--training", str(tmp_path / "recipe.yaml"))
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0].startswith("sent        ")
    sent = registered.inputs(**FILES)["data"].sources[0].loader.path
    assert (sent.path, registered.uploads[sent.address]) == (
        str(tmp_path / "rows.jsonl"),
        (tmp_path / "rows.jsonl").read_bytes(),
    )
    assert registered.relaunched(**FILES) == registered.inputs(**FILES)
    (tmp_path / "base").mkdir()
    model = {"extends": "recipe.yaml", "model": {"source": {"kind": "folder", "path": "base"}}}
    (tmp_path / "other.yaml").write_text(yaml.safe_dump(model))
    done = run(registered, "launch", "rlvr_quickstart", "--training", str(tmp_path / "other.yaml"))
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"Error: model.source.path = '{tmp_path}/base': a folder of this machine")


@pytest.mark.long
def test_what_is_not_given_is_the_launch_plans_own(registered):
    done = run(registered, "launch", "rlvr_quickstart", "--execution", "mine")
    assert done.returncode == 0, done.stderr
    execution = registered.executions[-1]
    assert execution.name == "mine"
    assert not execution.inputs.literals
    assert not execution.spec.labels.values
    assert set(registered.launch_plans[("rlvr_quickstart", "v1")].default_inputs.parameters) == set(FILES)


@pytest.mark.long
def test_a_launch_plan_that_is_not_registered_is_one_sentence(backend):
    done = run(backend, "launch", "rlvr_quickstrat")
    [line] = done.stderr.splitlines()
    assert line.startswith("Error: no launch plan 'rlvr_quickstrat' is registered in project flytesnacks")
    assert str(backend.config) in line


@pytest.mark.long
def test_a_mistyped_launch_plan_gets_the_nearest_name_before_any_file_is_sent(registered, tmp_path):
    (tmp_path / "rows.jsonl").write_text('{"prompt": "1?", "answer": 1}\n')
    source = {"name": "rows", "domain": "math", "verifier": "math", "loader": {"kind": "jsonl", "path": "rows.jsonl"}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump({"name": "mine", "sources": [source]}))
    sent = dict(registered.uploads)
    done = run(registered, "launch", "rlvr_quickstrat", "--data", str(tmp_path / "mine.yaml"))
    assert done.returncode == 1
    assert registered.uploads == sent
    [line] = done.stderr.splitlines()
    assert f"(admin.endpoint in {registered.config}) (did you mean 'rlvr_quickstart'?); there are: " in line
    assert {"rlvr_grpo", "rlvr_one_gpu"} < set(line.partition("there are: ")[2].split(", "))


@pytest.mark.long
@pytest.mark.parametrize(
    ("options", "said", "ending"),
    [
        (
            ["--project", "flytesnack"],
            "--project flytesnack: 127.0.0.1:",
            "has no such project (did you mean 'flytesnacks'?); it has: flytesnacks, research",
        ),
        (["--domain", "prod"], "--domain prod: 127.0.0.1:", "has no such domain; it has: development, production"),
    ],
)
@pytest.mark.parametrize("command", [["launch", "rlvr_quickstart"], ["fetch", "a1b2c3d4e5"]])
def test_a_project_or_domain_that_does_not_exist_is_named_as_such(backend, options, said, ending, command):
    done = run(backend, *command, *options)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    assert line.startswith(f"Error: {said}")
    assert f"admin.endpoint in {backend.config}" in line
    assert line.endswith(ending)


@pytest.mark.long
def test_a_backend_that_is_away_is_named_by_the_file_of_the_command(backend):
    backend.config.write_text("admin:\n  endpoint: dns:///127.0.0.1:1\n  insecure: true\n")
    done = run(backend, "launch", "rlvr_quickstart")
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"Error: the Flyte backend at 127.0.0.1:1 (admin.endpoint in {backend.config}) does not answer: "
    )


def blob(address, *, is_folder=False, form=""):
    kind = types_pb2.BlobType(dimensionality=int(is_folder), format=form)
    stored = literals_pb2.Blob(metadata=literals_pb2.BlobMetadata(type=kind), uri=address)
    return literals_pb2.Literal(scalar=literals_pb2.Scalar(blob=stored))


def ended(backend, folder):
    """An execution of the pipeline with some outputs, whose files are on the backend's storage."""
    policy = folder / "policy"
    (policy / "inner").mkdir(parents=True)
    (policy / "model.safetensors").write_bytes(b"weights")
    (policy / "inner" / "a.json").write_text("{}")
    seal(policy)
    files = {
        "s/report.html": b"<p>report</p>",
        "s/summary.json": json.dumps(SUMMARY).encode(),
        "s/9f": b"rows",
        **{f"p/{path.relative_to(policy)}": path.read_bytes() for path in policy.rglob("*") if path.is_file()},
    }
    backend.files |= {f"{STORED}/{name}": content for name, content in files.items()}
    data, training, evaluation = load_quickstart()
    sent = SentFile(named="/home/me/*.jsonl", path="/home/me/a.jsonl", address="s3://b/1.jsonl", sha256="0" * 64)
    loader = JsonlLoader(kind="jsonl", path=[sent, sent.model_copy(update={"path": "/home/me/b.jsonl"})])
    source = data.sources[0].model_copy(update={"loader": loader, "name": "rows"})
    data = data.model_copy(update={"sources": [*data.sources, source]})
    training = training.model_copy(update={"steps": 3})
    context = FlyteContextManager.current_context()
    inputs = {
        name: TypeEngine.to_literal(context, value, kind, TypeEngine.to_literal_type(kind)).to_flyte_idl()
        for (name, kind), value in zip(FILES.items(), (data, training, evaluation), strict=True)
    }
    outputs = {
        "report": blob(f"{STORED}/s/report.html", form="html"),
        "summary": blob(f"{STORED}/s/summary.json"),
        "mixture": blob(f"{STORED}/s/9f", form="parquet"),
        "policy": blob(f"{STORED}/p", is_folder=True),
        "steps": literals_pb2.Literal(scalar=literals_pb2.Scalar(primitive=literals_pb2.Primitive(integer=3))),
    }
    backend.ended["a1b2c3d4e5"] = Ended(outputs, inputs)


@pytest.mark.long
def test_the_results_of_an_execution_lie_as_those_of_a_local_run(backend, tmp_path, monkeypatch):
    ended(backend, tmp_path)
    monkeypatch.setenv("RLVR_OUTPUTS", str(tmp_path / "outputs"))
    done = run(backend, "fetch", "a1b2c3d4e5", "mixture")
    assert done.returncode == 0, done.stderr
    folder = tmp_path / "outputs" / "20261126-102030-a1b2c3d4e5"
    assert done.stdout.split() == ["mixture", str(folder / "mixture.parquet")]
    assert {path.name for path in folder.iterdir()} == {
        *("mixture.parquet", "data.yaml", "training.yaml", "evaluation.yaml")
    }
    backend.files.pop(f"{STORED}/s/9f")  # it is here
    done = run(backend, "fetch", "a1b2c3d4e5")
    assert done.returncode == 0, done.stderr
    assert (folder / "report.html").read_bytes() == b"<p>report</p>"
    assert (folder / "mixture.parquet").read_bytes() == b"rows"
    assert (folder / "policy" / "inner" / "a.json").read_text() == "{}"
    assert set(json.loads((folder / "policy" / MANIFEST).read_text())) == {"model.safetensors", "inner/a.json"}
    assert (tmp_path / "outputs" / "latest").resolve() == folder
    assert "mine" in (tmp_path / "outputs" / "index.html").read_text()
    assert load_yaml(Recipe, folder / "training.yaml") == load_quickstart()[1].model_copy(update={"steps": 3})
    data = load_yaml(DataFile, folder / "data.yaml")
    assert data.sources[:-1] == load_quickstart()[0].sources
    assert data.sources[-1].loader.path == ["/home/me/*.jsonl"], "the user's path, and not that of the copy"


@pytest.mark.long
def test_responses_of_training_are_fetched_by_name_and_step_and_never_by_default(backend, tmp_path, monkeypatch):
    ended(backend, tmp_path)
    monkeypatch.setenv("RLVR_OUTPUTS", str(tmp_path / "outputs"))
    run_address = "s3://bucket/rlvr-runs/abc"
    summary = SUMMARY | {"responses": f"{run_address}/rollouts"}
    backend.files[f"{STORED}/s/summary.json"] = json.dumps(summary).encode()
    backend.files |= {f"{run_address}/rollouts/0000000{n}.parquet": b"rows %d" % n for n in range(3)}
    listed = {f"0000000{n}.parquet": [10 * n, 10 * n + 10] for n in range(3)}
    backend.files[f"{run_address}/responses.json"] = json.dumps(listed).encode()
    folder = tmp_path / "outputs" / "20261126-102030-a1b2c3d4e5"
    assert run(backend, "fetch", "a1b2c3d4e5").returncode == 0
    assert not (folder / "responses").exists()
    done = run(backend, "fetch", "a1b2c3d4e5", "responses", "--step", "12:15")
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["responses", str(folder / "responses" / "00000001.parquet")]
    assert (folder / "responses" / "00000001.parquet").read_bytes() == b"rows 1"
    done = run(backend, "fetch", "a1b2c3d4e5", "responses", "--step", "77")
    [line] = done.stderr.splitlines()
    assert "has no responses of these steps, but of 0 to 30" in line
    backend.unsigned = run_address
    done = run(backend, "fetch", "a1b2c3d4e5", "responses")
    [line] = done.stderr.splitlines()
    assert f"the backend signs no link for {run_address}/responses.json" in line


@pytest.mark.long
def test_a_file_of_other_code_is_left_out_and_named(backend, tmp_path, monkeypatch):
    ended(backend, tmp_path)
    unknown = Struct()
    unknown.update({"name": "mine", "an_option_of_other_code": 1})
    backend.ended["a1b2c3d4e5"].inputs["data"] = literals_pb2.Literal(scalar=literals_pb2.Scalar(generic=unknown))
    monkeypatch.setenv("RLVR_OUTPUTS", str(tmp_path / "outputs"))
    done = run(backend, "fetch", "a1b2c3d4e5", "mixture")
    assert done.returncode == 0, done.stderr
    assert "data.yaml is left out: it was written for other code" in done.stderr
    [folder] = (tmp_path / "outputs").glob("2026*")
    assert {path.name for path in folder.iterdir()} == {"mixture.parquet", "training.yaml", "evaluation.yaml"}


@pytest.mark.long
@pytest.mark.parametrize(
    ("command", "facts"),
    [
        (["a1b2c3d4e5", "polcy"], ["'polcy'", "did you mean 'policy'?", "mixture, policy, report"]),
        (["unheard"], ["there is no execution unheard in project flytesnacks, domain development"]),
        (["running"], ["has no outputs: it is RUNNING", "flyte://v1/flytesnacks/development/running"]),
        (["a1b2c3d4e5", "report"], [f"{STORED}/s/report.html is no longer there"]),
    ],
)
def test_what_cannot_be_fetched_is_one_sentence_and_leaves_nothing(backend, tmp_path, monkeypatch, command, facts):
    ended(backend, tmp_path)
    backend.files.pop(f"{STORED}/s/report.html")
    backend.ended["running"] = Ended({}, phase=execution_pb2.WorkflowExecution.RUNNING)
    monkeypatch.setenv("RLVR_OUTPUTS", str(tmp_path / "outputs"))
    done = run(backend, "fetch", *command)
    assert done.returncode == 1
    [line] = done.stderr.splitlines()
    for fact in facts:
        assert fact in line
    assert list((tmp_path / "outputs").glob("*")) == []


@pytest.mark.long
@pytest.mark.parametrize("command", [("launch", "rlvr_quickstart"), ("fetch", "a1b2c3d4e5")])
def test_a_backend_that_is_away_is_named_with_the_file_that_names_it(backend, command):
    backend.config.write_text("admin:\n  endpoint: dns:///127.0.0.1:1\n  insecure: true\n")
    done = run(backend, *command)
    assert done.returncode == 1
    assert f"the Flyte backend at 127.0.0.1:1 (admin.endpoint in {backend.config}) does not answer" in done.stderr
