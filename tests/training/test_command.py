"""`python -m tasks.training run`: a run without Flyte."""

from types import SimpleNamespace

import pytest
from click.testing import CliRunner

from tasks.tables.content_digest import file_digest
from tasks.training.__main__ import main, with_overrides
from tasks.training.records.identity import run_name
from tasks.training.records.run_state import OtherRunError
from tasks.verifiers.config import DEFAULTS
from tests.training.mixtures import mixture

OVERRIDES = (
    *("steps=1", "groups_per_step=2", "sampling={samples: 4, max_tokens: 16}", "learner.cpu_threads=1"),
    "actors.engine={max_model_len: 128, max_num_seqs: 16, cpu_threads: 1}",
)


@pytest.fixture
def prompts(tmp_path, monkeypatch):
    monkeypatch.setenv("RLVR_RUNS", str(tmp_path / "runs"))
    return mixture(tmp_path, [f"Write a sentence about the {word}" for word in ("sea", "river", "rain", "dog")])


def invoke(model, prompts, *more):
    import ray

    command = ["run", "quickstart", "--mixture", str(prompts), "--model", str(model), *OVERRIDES, *more]
    try:
        return CliRunner().invoke(main, command)
    finally:
        ray.shutdown()


def default_folder(model, prompts, tmp_path):
    options = with_overrides("quickstart", OVERRIDES).run
    return tmp_path / "runs" / run_name(file_digest(model), file_digest(prompts), options, DEFAULTS)


def test_a_command_hands_its_options_to_training_and_prints_what_comes_of_it(
    prompts, tiny_model, tmp_path, monkeypatch
):
    given = []

    def train(inputs):
        given.append(inputs)
        return SimpleNamespace(**{name: inputs.folder / name for name in ("policy", "ledger", "metrics")})

    monkeypatch.setattr("ray.init", lambda **_: None)
    monkeypatch.setattr("tasks.training.run.train", train)
    done = invoke(tiny_model, prompts)
    assert done.exit_code == 0, done.output
    folder = default_folder(tiny_model, prompts, tmp_path)
    config = with_overrides("quickstart", OVERRIDES).run
    taken = (given[0].config, given[0].model, given[0].mixture, given[0].folder, given[0].verifiers)
    assert taken == (config, tiny_model, prompts, folder, DEFAULTS.with_initial(tiny_model))
    assert done.output.splitlines()[-3:] == [f"{name:12}{folder / name}" for name in ("policy", "ledger", "metrics")]

    invoke(tiny_model, prompts, "objective.clip_high=0.3", "--folder", str(tmp_path / "other"))
    assert given[1].config.objective.clip_high == 0.3
    assert given[1].folder == tmp_path / "other"


@pytest.mark.complete
@pytest.mark.engine
def test_a_command_trains_and_other_options_are_another_run(tiny_model, prompts, tmp_path):
    done = invoke(tiny_model, prompts)
    assert done.exit_code == 0, done.output
    folder = default_folder(tiny_model, prompts, tmp_path)
    assert f"policy      {folder / 'policy'}" in done.output
    assert (folder / "policy" / "model.safetensors").is_file()

    other = invoke(tiny_model, prompts, "objective.clip_high=0.3", "--folder", str(folder))
    assert isinstance(other.exception, OtherRunError)
    assert "is of a run with objective.clip_high = " in str(other.exception)
