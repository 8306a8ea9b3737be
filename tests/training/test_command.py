"""`rlvr train`: a run without Flyte."""

import json
from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tasks.commands.group import rlvr
from tasks.config.loading import load_yaml
from tasks.failures import MistakeError
from tasks.inputs.files import DataFile, load_quickstart
from tasks.inputs.overrides import with_overrides
from tasks.machine.resources import Machine
from tasks.model_check.comparison import Difference, ModelCheckError
from tasks.recipe.run import ValidationConfig
from tasks.storage.lease import RunInUseError
from tasks.storage.outputs import require_idle
from tasks.tables.content_digest import file_digest
from tasks.tables.json_lines import read_json_lines
from tasks.training.records.identity import run_name
from tasks.training.records.run_state import OtherRunError
from tasks.training.run_attempt import step_note
from tests.training.mixtures import mixture

OVERRIDES = (
    *("steps=1", "groups_per_step=2", "sampling={samples: 4, max_tokens: 16}", "learner.cpu_threads=1"),
    "model_check=false",
    "actors.engine={max_model_len: 128, max_num_seqs: 16, cpu_threads: 1}",
)

JUDGED = load_quickstart()[0].verifiers
"""How responses are judged where the recipe names the quickstart's data and the command gives no other."""


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("RLVR_RUNS", str(tmp_path / "runs"))
    return mixture(tmp_path, [f"Write a sentence about the {word}" for word in ("sea", "river", "rain", "dog")])


def invoke(model, prompts, *more):
    import ray

    command = ["train", "quickstart", "--mixture", str(prompts), "--model", str(model), *OVERRIDES, *more]
    try:
        return CliRunner().invoke(rlvr, command)
    finally:
        ray.shutdown()


def default_folder(model, prompts, tmp_path):
    options = with_overrides("quickstart", OVERRIDES).run
    return tmp_path / "runs" / run_name(file_digest(model), file_digest(prompts), options, JUDGED)


@pytest.fixture
def given(monkeypatch, tmp_path):
    """What each `train` was given; nothing is trained."""
    taken = []

    def train(inputs):
        taken.append(inputs)
        return SimpleNamespace(**{name: inputs.folder / name for name in ("policy", "ledger", "metrics")})

    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 2.0})
    monkeypatch.setattr("tasks.training.run.train", train)
    return taken


def test_nothing_is_pruned_while_the_command_trains(prompts, tiny_model, given, monkeypatch):
    def train(inputs):
        with pytest.raises(RunInUseError), require_idle():
            pass
        return given.append(inputs) or SimpleNamespace(policy="", ledger="", metrics="")

    monkeypatch.setattr("tasks.training.run.train", train)
    assert invoke(tiny_model, prompts).exit_code == 0
    assert given


def test_a_command_hands_its_options_to_training_and_prints_what_comes_of_it(prompts, tiny_model, tmp_path, given):
    model = tiny_model
    done = invoke(model, prompts)
    assert done.exit_code == 0, done.output
    folder = default_folder(model, prompts, tmp_path)
    config = with_overrides("quickstart", OVERRIDES).run
    taken = (given[0].config, given[0].model, given[0].mixture, given[0].folder, given[0].verifiers)
    assert taken == (config, model, prompts, folder, JUDGED.resolve_initial(model))
    assert JUDGED.judge is not None
    results = {name: folder / name for name in ("policy", "ledger", "metrics")} | {"responses": folder / "rollouts"}
    assert done.output.splitlines()[-4:] == [f"{name:12}{path}" for name, path in results.items()]

    invoke(model, prompts, "objective.clip_high=0.3", "--folder", str(tmp_path / "other"))
    assert given[1].config.objective.clip_high == 0.3
    assert given[1].folder == tmp_path / "other"


@pytest.mark.long
@pytest.mark.parametrize("by", ["name", "path", "recipe"])
def test_data_is_taken_by_name_by_path_or_from_the_recipe(prompts, tiny_model, tmp_path, given, by):
    own = tmp_path / "mine" / "own.yaml"
    own.parent.mkdir()
    own.write_text("extends: quickstart\nverifiers.judge.max_tokens: 77\n")
    (tmp_path / "mine" / "recipe.yaml").write_text("extends: quickstart\ndata: own.yaml\n")
    command = {
        "name": ["quickstart", "--data", "quickstart"],
        "path": ["quickstart", "--data", str(own)],
        "recipe": [str(tmp_path / "mine" / "recipe.yaml")],
    }[by]
    files = ["--mixture", str(prompts), "--model", str(tiny_model)]
    done = CliRunner().invoke(rlvr, ["train", *command, *files])
    assert done.exit_code == 0, done.output
    expected = JUDGED if by == "name" else load_yaml(DataFile, own).verifiers
    assert given[0].verifiers == expected.resolve_initial(tiny_model)


def test_a_run_that_is_resumed_says_from_which_step(prompts, tiny_model, tmp_path, given):
    folder = tmp_path / "run"
    (folder / "checkpoints" / "step_00000002").mkdir(parents=True)
    done = invoke(tiny_model, prompts, "steps=4", "--folder", str(folder))
    assert f"training: 2 of 4 steps are done: resumed from the checkpoint in {folder}" in done.output
    assert "training: steps: 2/4" in done.output


def test_fewer_steps_than_the_run_has_taken_are_trained_in_a_folder_of_their_own(prompts, tiny_model, tmp_path, given):
    folder = default_folder(tiny_model, prompts, tmp_path)
    (folder / "checkpoints" / "step_00000008").mkdir(parents=True)
    done = invoke(tiny_model, prompts, "steps=4")
    assert given[0].folder == folder.with_name(f"{folder.name}-4")
    assert "has taken 8 steps: 4 steps are a separate run, from the beginning, as it has no" in done.output
    invoke(tiny_model, prompts, "steps=9")
    assert given[1].folder == folder


@pytest.mark.parametrize(
    ("saved", "line"),
    [(2, "2 of 4 steps are in the checkpoint in"), (0, "before the first checkpoint (checkpoint_every is 7)")],
)
def test_a_run_that_is_interrupted_says_what_is_left(prompts, tiny_model, tmp_path, given, monkeypatch, saved, line):
    folder = tmp_path / "run"

    def interrupted(_):
        if saved:
            (folder / "checkpoints" / f"step_{saved:08d}").mkdir(parents=True)
        raise KeyboardInterrupt

    monkeypatch.setattr("tasks.training.run.train", interrupted)
    done = invoke(tiny_model, prompts, "steps=4", "checkpoint_every=7", "--folder", str(folder))
    assert done.exit_code != 0
    assert line in done.output
    assert "the same command" in done.output


def test_the_progress_of_a_step_says_up_to_where_the_run_is_saved(tmp_path):
    assert step_note({"reward": 0.25}, tmp_path) == "reward 0.25, no checkpoint yet"
    (tmp_path / "checkpoints" / "step_00000002").mkdir(parents=True)
    assert step_note({}, tmp_path) == "checkpoint of 2 steps"


def test_the_model_is_checked_once_for_a_run_folder_and_again_for_other_options(
    prompts, tiny_model, tmp_path, given, monkeypatch
):
    checked = []

    def check_model(model, options):
        checked.append((model, options.learner.dtype))
        return {"the learner and an engine": Difference(1e-6, 1e-4)}

    monkeypatch.setattr("tasks.model_check.check.check_model", check_model)
    for dtype in ("float32", "float32", "bfloat16"):
        options = ("model_check=true", f"learner.dtype={dtype}", "--folder", str(tmp_path / "run"))
        done = invoke(tiny_model, prompts, *options)
        assert done.exit_code == 0, done.output
    assert checked == [(tiny_model, "float32"), (tiny_model, "bfloat16")]
    figures = json.loads((tmp_path / "run" / "model_check.json").read_text())["differences"]
    assert figures == {"the learner and an engine": {"nats": 1e-6, "tolerance": 1e-4}}


def test_a_model_that_is_refused_is_not_trained(prompts, tiny_model, given, monkeypatch):
    def refuse(*_):
        raise ModelCheckError("model x: the learner and an engine differ")

    monkeypatch.setattr("tasks.model_check.check.check_model", refuse)
    done = invoke(tiny_model, prompts, "model_check=true")
    assert isinstance(done.exception, ModelCheckError)
    assert not given


def test_from_a_machine_without_a_gpu_the_model_of_a_cluster_with_gpus_is_not_checked(
    prompts, tiny_model, given, monkeypatch
):
    gpus = Machine(8.0, 8.0)
    monkeypatch.setattr("tasks.commands.without_flyte.read_ray_resources", lambda: gpus)
    monkeypatch.setattr("tasks.commands.without_flyte.has_gpu", lambda: False)
    done = invoke(tiny_model, prompts, "model_check=true", "--cluster", "10.0.0.1:6379")
    assert isinstance(done.exception, MistakeError)
    assert f"rlvr doctor model-check {tiny_model}" in str(done.exception)
    assert "model_check=false" in str(done.exception)
    assert not given


@pytest.mark.complete
@pytest.mark.engine
def test_a_command_trains_and_other_options_are_another_run(tiny_model, prompts, tmp_path):
    done = invoke(tiny_model, prompts, "model_check=true")
    assert done.exit_code == 0, done.output
    folder = default_folder(tiny_model, prompts, tmp_path)
    assert len(json.loads((folder / "model_check.json").read_text())["differences"]) >= 5
    assert f"policy      {folder / 'policy'}" in done.output
    assert (folder / "policy" / "model.safetensors").is_file()

    other = invoke(tiny_model, prompts, "objective.clip_high=0.3", "--folder", str(folder))
    assert isinstance(other.exception, OtherRunError)
    assert "belongs to a run with objective.clip_high = " in str(other.exception)


SUMS = """
name: sums
card: https://example.org/sums
licence: mit
source:
  domain: math
  verifier: math
  loader: {kind: jsonl, path: sums.jsonl}
  columns: {prompt: question, ground_truth: answer}
sampling: {samples: 2, max_tokens: 8, seed: 3}
"""


@pytest.fixture
def sums(tmp_path):
    """A benchmark of four sums; the path of its file."""
    rows = [{"question": f"1 + {number} =", "answer": str(1 + number)} for number in range(4)]
    (tmp_path / "sums.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (tmp_path / "sums.yaml").write_text(SUMS)
    return tmp_path / "sums.yaml"


def test_validation_on_a_benchmark_reads_its_questions_and_is_another_run(prompts, tiny_model, tmp_path, given, sums):
    done = invoke(tiny_model, prompts, f"validation={{prompts: 0, benchmarks: [{sums}]}}")
    assert done.exit_code == 0, done.output
    (benchmark,) = given[0].benchmarks
    assert (benchmark.asked.name, benchmark.asked.sampling.samples, benchmark.questions.num_rows) == ("sums", 2, 4)
    assert type(given[0].config.validation) is ValidationConfig
    sums.with_suffix(".jsonl").write_text('{"question": "2 + 2 =", "answer": "4"}')
    invoke(tiny_model, prompts, f"validation={{prompts: 0, benchmarks: [{sums}]}}")
    assert given[0].config == given[1].config
    assert given[0].folder != given[1].folder


@pytest.mark.complete
@pytest.mark.engine
def test_a_run_validates_on_a_benchmark_and_on_prompts_that_it_keeps_out(prompts, tiny_model, tmp_path, sums):
    validation = f"validation={{every: 1, prompts: 1, samples: 2, benchmarks: [{sums}]}}"
    done = invoke(tiny_model, prompts, validation, "groups_per_step=1", "--folder", str(tmp_path / "run"))
    assert done.exit_code == 0, done.output
    rows = read_json_lines(tmp_path / "run" / "metrics.jsonl")
    assert max(row["validation/version"] for row in rows if "validation/version" in row) == 1
    validated = [row for row in rows if "validation/version" in row][-1]
    assert 0 <= validated["validation/score"] <= 1
    assert validated["validation/benchmarks/sums/pass_rate"] == 0  # a random model adds nothing up
    assert validated["validation/unanswered"] == 0
