"""Each surrogate by hand: its value, where its bounds bite, and the gradient that its paper asks for."""

from math import exp, log

import pytest
import torch

from tasks.training.objective import LossInputs, ObjectiveConfig, policy_loss, summarize

RATIOS = [[0.5, 1.1, 4.0], [0.7, 1.4, 4.0]]  # pi / pi_old
OLD = [[-1.0, -2.0, -3.0], [-0.3, -1.7, -4.0]]
ADVANTAGES = [[2.0] * 3, [-1.0] * 3]


def run(**config):
    """Loss, gradient and metrics of two sequences of three tokens, with engine and learner alike."""
    old = torch.tensor(OLD, dtype=torch.float64)
    logprobs = (old + torch.tensor(RATIOS, dtype=torch.float64).log()).requires_grad_()
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    inputs = LossInputs(logprobs, old, old, advantages, mask=torch.ones(2, 3, dtype=torch.bool))
    output = policy_loss(inputs, ObjectiveConfig(**config))
    output.loss.backward()
    return output.loss.item(), (-logprobs.grad).tolist(), summarize([output.metrics])


def test_dual_clip_bounds_what_a_negative_advantage_costs():
    # A = 2: 1.0, 2.2, 2.56 (upper bound).  A = -1: -0.8 (lower bound), -1.4, and -4 becomes -3
    value, grad, metrics = run(dual_clip=3.0)
    assert value == pytest.approx(-(1.0 + 2.2 + 2.56 - 0.8 - 1.4 - 3.0) / 6)
    assert grad == [pytest.approx([1.0 / 6, 2.2 / 6, 0]), pytest.approx([0, -1.4 / 6, 0])]
    assert (metrics["clip_low"], metrics["clip_high"], metrics["clip_dual"]) == pytest.approx((1 / 6, 1 / 6, 1 / 6))


def test_without_dual_clip_it_is_not_bounded():
    value, grad, metrics = run()
    assert value == pytest.approx(-(1.0 + 2.2 + 2.56 - 0.8 - 1.4 - 4.0) / 6)
    assert grad[1] == pytest.approx([0, -1.4 / 6, -4.0 / 6])
    assert "clip_dual" not in metrics


def test_cispo_keeps_a_gradient_for_clipped_tokens():
    weights = [[0.8, 1.1, 1.28], [0.8, 1.28, 1.28]]  # ratios within [0.8, 1.28], whatever the advantage
    logprobs = [[o + log(r) for o, r in zip(*pair, strict=True)] for pair in zip(OLD, RATIOS, strict=True)]
    terms = [
        w * a * p for rows in zip(weights, ADVANTAGES, logprobs, strict=True) for w, a, p in zip(*rows, strict=True)
    ]
    value, grad, metrics = run(surrogate="cispo")
    assert value == pytest.approx(-sum(terms) / 6)
    assert grad == [pytest.approx([2 * w / 6 for w in weights[0]]), pytest.approx([-w / 6 for w in weights[1]])]
    assert (metrics["clip_low"], metrics["clip_high"]) == pytest.approx((2 / 6, 3 / 6))


def test_cispo_may_leave_the_lower_bound_open():
    _, grad, metrics = run(surrogate="cispo", clip_low=1.0)
    assert grad[0][0] == pytest.approx(2 * 0.5 / 6)
    assert metrics["clip_low"] == 0


def test_gspo_is_the_clipped_ratio_of_whole_sequences():
    first, second = ((row[0] * row[1] * row[2]) ** (1 / 3) for row in RATIOS)  # 1.301 and 1.576
    value, grad, metrics = run(surrogate="gspo", aggregation="sequence", clip_high=0.28)
    assert value == pytest.approx(-(1.28 * 2 - second) / 2)  # the first is clipped; for the second no bound binds
    # d s / d log pi_t = s / 3, for each of two sequences
    assert grad == [pytest.approx([0, 0, 0]), pytest.approx([-second / 6] * 3)]
    assert metrics["clip_high"] == pytest.approx(1 / 2)
    _, grad, _ = run(surrogate="gspo", aggregation="sequence", clip_high=0.5)
    assert grad[0] == pytest.approx([2 * first / 6] * 3)


def test_on_policy_all_surrogates_have_the_gradient_of_reinforce():
    old = torch.tensor(OLD, dtype=torch.float64)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    for surrogate in ("ppo", "cispo", "gspo"):
        logprobs = old.clone().requires_grad_()
        inputs = LossInputs(logprobs, old, old, advantages, mask=torch.ones(2, 3, dtype=torch.bool))
        policy_loss(inputs, ObjectiveConfig(surrogate=surrogate, aggregation="sequence")).loss.backward()
        torch.testing.assert_close(logprobs.grad, -advantages / 6)


def test_gspos_bounds_see_sequences_that_tokens_would_not():
    # each ratio within [0.8, 1.25]; so is their mean, exp(log(1.2) / 3): nothing is clipped at 0.25, all at 0.05
    assert exp(log(1.2) / 3) == pytest.approx(1.0627, abs=1e-4)
    old = torch.zeros(1, 3, dtype=torch.float64) - 1
    logprobs = old + torch.tensor([[1.2, 1.0, 1.0]], dtype=torch.float64).log()
    inputs = LossInputs(logprobs, old, old, torch.ones_like(old), mask=torch.ones(1, 3, dtype=torch.bool))

    def share(high):
        config = ObjectiveConfig(surrogate="gspo", aggregation="sequence", clip_high=high)
        return summarize([policy_loss(inputs, config).metrics])["clip_high"]

    assert (share(0.25), share(0.05)) == (0, 1)
