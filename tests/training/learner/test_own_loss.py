"""A loss of the user's that repeats `ppo` trains the same weights as the built-in one, to the last bit.

The engine's and the old policy's log-probabilities are given, so that ratios differ from 1 and some are clipped.
"""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tests.training.learner.test_learner import LORA, RATE, SEQUENCES, exported, learner  # noqa: F401 (a fixture)

pytestmark = pytest.mark.engine

PPO = {"function": "tests.training.own_objective.ppo"}
DENOMINATOR = 15.0
STEPS = 3


@pytest.fixture(autouse=True)
def ended(learner):  # noqa: F811
    yield
    learner.end()


def batch(trainer):
    """The sequences with a part masked, an advantage for each token of one, and an old policy that is some way off."""
    rng = np.random.default_rng(0)
    old = asyncio.run(trainer.logprobs(SEQUENCES))
    moved = [values + rng.normal(0, 0.3, len(values)).astype(np.float32) for values in old]
    sequences = [
        replace(sequence, old_logprobs=values, rollout_logprobs=values - 0.1)
        for sequence, values in zip(SEQUENCES, moved, strict=True)
    ]
    sequences[0] = replace(sequences[0], mask=[True, False, True, True])
    sequences[2] = replace(sequences[2], advantage=np.linspace(-1, 1, 6, dtype=np.float32))
    return sequences


def trained(learner, folder, surrogate, *, resumed=False, **options):  # noqa: F811
    """The policy after `STEPS` steps, and the metrics of the last. `resumed`: another learner takes the last step."""
    objective = {"surrogate": surrogate, "correction": {"kind": "tis", "max": 2.0}}
    trainer = learner(objective=objective, **options)
    sequences = batch(trainer)
    for number in range(STEPS):
        if resumed and number == STEPS - 1:
            asyncio.run(trainer.save(folder / "saved"))
            asyncio.run(trainer.wait_until_written())
            learner.end()
            trainer = learner(objective=objective, fresh=True, **options)
            asyncio.run(trainer.load(folder / "saved"))
        metrics = asyncio.run(trainer.step(sequences, DENOMINATOR, RATE)).metrics
    policy = exported(trainer, folder / "policy")
    learner.end()
    return policy, metrics


@pytest.mark.parametrize(
    "options",
    [
        pytest.param({"micro_batch_tokens": 64}, id="one packed row"),
        pytest.param({"micro_batch_tokens": 10, "dtype": "float32"}, id="four rows in float32"),
        pytest.param({"lora": LORA}, id="LoRA"),
        pytest.param({"ranks": 2, "zero_stage": 2}, id="two ranks", marks=pytest.mark.complete),
        pytest.param({"ranks": 2, "zero_stage": 3}, id="ZeRO 3", marks=pytest.mark.complete),
        pytest.param({"resumed": True}, id="resumed", marks=pytest.mark.complete),
    ],
)
def test_a_function_that_repeats_ppo_gives_the_same_weights(learner, tmp_path, options):  # noqa: F811
    import torch

    once = {name: value for name, value in options.items() if name != "resumed"}
    expected, built_in = trained(learner, tmp_path / "built-in", "ppo", **once)
    found, own = trained(learner, tmp_path / "own", PPO, **options)
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], expected[name]) for name in found)
    assert own["grad_norm"] == built_in["grad_norm"] > 0
    assert 0 < built_in["clip_low"] + built_in["clip_high"] < 1
    assert own["own/ratio"] == pytest.approx(own["ratio"], rel=1e-6)
    assert "clip_low" not in own


def test_a_loss_that_fails_ends_the_run_with_its_sentence(learner):  # noqa: F811
    from tasks.objective.own_functions import OwnFunctionError

    trainer = learner(objective={"surrogate": {"function": "tests.training.own_objective.averages"}})
    with pytest.raises(OwnFunctionError) as failed:
        asyncio.run(trainer.step(SEQUENCES, DENOMINATOR, RATE))
    message = str(failed.value)
    assert message.startswith("loss tests.training.own_objective.averages must return a term for each token")
    assert "tests/training/own_objective.py, line " in message
    assert "\n" not in message
