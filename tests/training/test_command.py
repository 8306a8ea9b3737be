"""`python -m tasks.training run`: a run without Flyte."""

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
    "actors.engine={max_model_len: 128, max_num_seqs: 16}",
)


@pytest.mark.engine
def test_a_command_trains_and_other_options_are_another_run(tiny_model, tmp_path, monkeypatch):
    import ray

    monkeypatch.setenv("RLVR_RUNS", str(tmp_path / "runs"))
    prompts = mixture(tmp_path, [f"Write a sentence about the {word}" for word in ("sea", "river", "rain", "dog")])

    def run(*more):
        command = ["run", "quickstart", "--mixture", str(prompts), "--model", str(tiny_model), *OVERRIDES, *more]
        try:
            return CliRunner().invoke(main, command)
        finally:
            ray.shutdown()

    done = run()
    assert done.exit_code == 0, done.output
    name = run_name(
        file_digest(tiny_model), file_digest(prompts), with_overrides("quickstart", OVERRIDES).run, DEFAULTS
    )
    folder = tmp_path / "runs" / name
    assert f"policy      {folder / 'policy'}" in done.output
    assert (folder / "policy" / "model.safetensors").is_file()

    other = run("objective.clip_high=0.3", "--folder", str(folder))
    assert isinstance(other.exception, OtherRunError)
    assert "is of a run with objective.clip_high = " in str(other.exception)
