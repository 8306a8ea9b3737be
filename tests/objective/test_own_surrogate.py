"""A loss of the user's in place of a built-in one: the same gradient to the last bit, and metrics that add up."""

from dataclasses import replace

import pytest
import torch

from tasks.objective import LossInputs, policy_loss, summarize
from tasks.objective.own_functions import load_own_loss
from tasks.recipe.objective import ObjectiveConfig

PPO = {"function": "tests.training.own_objective.ppo"}
LENGTHS = (5, 1, 7, 3)


def row(dtype=torch.float32):
    """A packed row of four sequences, whose first token is not trained, with NaN there."""
    generator = torch.Generator().manual_seed(0)
    count = sum(LENGTHS)
    logprobs, old, rollout = (-torch.rand(3, 1, count, generator=generator) * 2).to(dtype)
    mask = torch.arange(count)[None] > 0
    ids = torch.repeat_interleave(torch.arange(len(LENGTHS)), torch.tensor(LENGTHS))[None]
    advantages = torch.randn(1, count, generator=generator)
    unread = torch.where(mask, old, torch.nan)
    return LossInputs(logprobs, unread, rollout, advantages, mask, ref_logprobs=old, denominator=9.0, sequence_ids=ids)


def gradient(inputs, **options):
    config = ObjectiveConfig.model_validate(options)
    logprobs = inputs.logprobs.clone().requires_grad_()
    output = policy_loss(replace(inputs, logprobs=logprobs), config, load_own_loss(config.surrogate))
    output.loss.backward()
    return output, logprobs.grad


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"aggregation": "sequence", "correction": {"kind": "seq_mask_tis", "min": 0.5, "max": 2.0}},
        {"kl": {"beta": 0.3}, "correction": {"off_policy_threshold": 0.1}},
    ],
    ids=["token", "sequence", "penalties"],
)
def test_a_function_that_repeats_ppo_has_its_loss_and_its_gradient_to_the_last_bit(dtype, options):
    inputs = row(dtype)
    built_in, expected = gradient(inputs, **options)
    own, found = gradient(inputs, surrogate=PPO, **options)
    assert torch.equal(found, expected)
    assert found.isfinite().all()
    assert torch.equal(own.loss, built_in.loss)
    shared = built_in.metrics.keys() & own.metrics.keys()
    assert all(torch.equal(own.metrics[name], built_in.metrics[name]) for name in shared)
    clipping = {"clip_low", "clip_high", "clip_high_probability_max"}
    assert built_in.metrics.keys() - shared == clipping
    assert own.metrics.keys() - shared == {"own/outside", "own/ratio"}


def test_options_are_arguments_of_the_function():
    bounds = {"clip_low": 0.01, "clip_high": 0.02}
    _, expected = gradient(row(), **bounds)
    _, found = gradient(row(), surrogate={**PPO, "options": bounds})
    assert torch.equal(found, expected)
    assert not torch.equal(found, gradient(row(), surrogate=PPO)[1])


def test_metrics_are_means_over_the_trained_tokens_of_all_micro_batches():
    inputs = row()
    config = ObjectiveConfig.model_validate({"surrogate": PPO})
    loss = load_own_loss(config.surrogate)
    whole = summarize([policy_loss(inputs, config, loss).metrics])
    cut = LENGTHS[0]
    tensors = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages", "mask", "ref_logprobs", "sequence_ids")
    halves = [
        replace(inputs, **{name: getattr(inputs, name)[:, part] for name in tensors})
        for part in (slice(0, cut), slice(cut, None))
    ]
    together = summarize([policy_loss(half, config, loss).metrics for half in halves])
    ratio = (inputs.logprobs - inputs.old_logprobs).exp()[inputs.mask]
    outside = (ratio < 0.8) | (ratio > 1.28)
    assert 0 < whole["own/outside"] < 1
    for metrics in (whole, together):
        # sums of 15 numbers in float32, in another order
        assert metrics["own/outside"] == pytest.approx(outside.float().mean().item(), rel=1e-6)
        assert metrics["own/ratio"] == pytest.approx(ratio.mean().item(), rel=1e-6)


def test_a_row_is_given_without_what_is_outside_the_mask():
    seen = []

    def loss(given):
        seen.append(given)
        return given.logprobs / given.mask, {}  # NaN or infinity outside the mask

    config = ObjectiveConfig.model_validate({"surrogate": {"function": "mine.loss"}})
    output = policy_loss(row(), config, loss)
    assert output.loss.isfinite()
    [given] = seen
    names = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages")
    assert all((getattr(given, name)[~given.mask] == 0).all() for name in names)
    assert torch.equal(given.sequence_ids, row().sequence_ids)
    with pytest.raises(ValueError, match=r"surrogate\.function = mine\.loss needs own"):
        policy_loss(row(), config)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"surrogate": PPO, "clip_high": 0.3}, "clip_high = 0.3"),
        ({"surrogate": PPO, "dual_clip": 3.0}, "set dual_clip: null"),
        ({"surrogate": PPO, "force_on_policy_ratio": True}, "force_on_policy_ratio = True"),
        ({"advantage": PPO, "normalization": "batch"}, "normalization = batch"),
        ({"advantage": PPO, "reward_aggregation": "normalize_then_sum"}, "group_norm, not tests.training"),
        ({"surrogate": {"function": "loss"}}, "my_objective.loss"),
        ({"surrogate": "pop"}, "'ppo'"),
    ],
)
def test_options_that_a_function_replaces_are_refused(options, named):
    with pytest.raises(ValueError, match=named):
        ObjectiveConfig.model_validate(options)
