"""A real run that keeps all tokens: the metrics of engine and learner, computed again from its tables."""

import math
import signal

import numpy as np
import pytest

from tasks.recipe.run import TrainingConfig
from tasks.tables.parquet import read_table
from tasks.training.records.response_files import TRAINING_ROLLOUTS
from tests.training.driven import LEARNER, check_groups, metrics, run
from tests.training.mixtures import mixture

pytestmark = [pytest.mark.engine, pytest.mark.complete, pytest.mark.timeout(1200)]

RECIPE = {
    "steps": 4,
    "groups_per_step": 2,
    "sampling": {"samples": 4, "max_tokens": 16},
    "optimizer": {"learning_rate": 1e-3},
    # bfloat16 on every processor, so that engine and learner differ
    "learner": {"cpu_threads": 1, "micro_batch_tokens": 144, "dtype": "bfloat16"},
    "actors": {"engine": {"max_model_len": 128, "max_num_seqs": 16, "cpu_threads": 1, "dtype": "bfloat16"}},
    "checkpoint_every": 1,
    "stall_seconds": 240,
    "keep_tokens": 1,
}
FLOAT32 = 2e-6
"""Relative: each of a hundred terms of a sum is rounded to 6e-8."""


def responses(folder):
    """The responses that steps were taken on, by step."""
    files = sorted((folder / "rollouts").glob("*.parquet"))
    by_step = {}
    for file in files:
        for row in read_table(file, TRAINING_ROLLOUTS).to_pylist():
            if row["fate"] == "trained":
                by_step.setdefault(row["step"], []).append(row)
    return by_step


def computed(rows):
    """The metrics of a step that depend only on tokens, from the definitions in `docs/metrics.md`, in float64."""
    mask = np.concatenate([row["loss_mask"] for row in rows])
    engine, learner = (
        np.concatenate([row[name] for row in rows])[mask] for name in ("engine_logprobs", "learner_logprobs")
    )
    d, p, q = learner - engine, np.exp(learner), np.exp(engine)
    m = (p + q) / 2
    return {
        "trained_tokens": len(d),
        "mismatch": abs(d).mean(),
        "mismatch_max": abs(d).max(),
        "probability": p.mean(),
        "token_mult_prob_error": np.exp(abs(d)).mean(),
        "gen_kl_error": (np.exp(d) - d - 1).mean(),
        "policy_kl_error": (np.exp(-d) + d - 1).mean(),
        "js_divergence_error": ((p / m - np.log(p / m) - 1 + q / m - np.log(q / m) - 1) / 2).mean(),
        "importance_weight": np.minimum(np.exp(d), 2).mean(),
    }


def check_metrics(folder, epochs=1):
    by_step = responses(folder)
    assert by_step.keys() == {row["step"] for row in metrics(folder)}
    for row in metrics(folder):
        expected = computed(by_step[row["step"]])
        expected["trained_tokens"] *= epochs  # counted in every epoch
        for name, value in expected.items():
            # of what is a small difference of two numbers near 1, the float32 of these numbers is seen
            assert row[name] == pytest.approx(value, rel=FLOAT32, abs=2e-7), (row["step"], name)
        assert row["mismatch"] > 1e-4  # bfloat16: zeros would be equal, too
        advantages = [response["advantage"] for response in by_step[row["step"]]]
        assert math.fsum(advantages) == pytest.approx(0, abs=1e-6)
        assert all(0 < len(response["token_ids"]) <= 16 for response in by_step[row["step"]])


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    contents = [f"Write a sentence about the {word}" for word in ("sea", "river", "rain", "dog", "fox", "sum")]
    return mixture(tmp_path_factory.mktemp("mixture"), contents)


def test_a_killed_and_resumed_run_has_the_tokens_from_which_its_metrics_can_be_computed(tiny_model, prompts, tmp_path):
    recipe = TrainingConfig.model_validate(RECIPE)
    assert run(recipe, tiny_model, prompts, tmp_path, kill_driver_after=2) == -signal.SIGKILL
    assert run(recipe, tiny_model, prompts, tmp_path) == 0
    check_groups(tmp_path, recipe)
    check_metrics(tmp_path)


def test_so_has_a_run_of_two_ranks_of_which_one_is_killed(tiny_model, prompts, tmp_path):
    learner = {**RECIPE["learner"], "ranks": 2, "cpus": 0.5, "zero_stage": 3}
    recipe = TrainingConfig.model_validate({**RECIPE, "learner": learner})
    assert run(recipe, tiny_model, prompts, tmp_path, kills={1: LEARNER}) == 0
    check_groups(tmp_path, recipe)
    check_metrics(tmp_path)


def test_so_has_a_run_with_several_updates_per_batch(tiny_model, prompts, tmp_path):
    recipe = TrainingConfig.model_validate({**RECIPE, "updates": {"minibatches": 2, "epochs": 2}})
    assert run(recipe, tiny_model, prompts, tmp_path) == 0
    check_metrics(tmp_path, epochs=2)
