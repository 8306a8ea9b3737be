"""Each surrogate by hand: its value, where its bounds bite, and the gradient that its paper asks for."""

from math import exp, log

import pytest
import torch

from tasks.objective import LossInputs, policy_loss, summarize
from tasks.recipe.objective import ObjectiveConfig

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


def test_dppo_drops_tokens_whose_probability_changed_too_much():
    # q: exp(OLD) = 0.368, 0.135, 0.050; 0.741, 0.183, 0.018, and p - q = (r - 1) q:
    #   A = 2:   -0.184 (moves back up: kept),   0.014,   0.149 (above `high`)
    #   A = -1:  -0.222 (below `-low`),   0.073 and 0.055 (move back down: kept)
    value, grad, metrics = run(
        surrogate="dppo", correction={"kind": "none"}, dppo={"low": 0.2, "high": 0.1, "kl_weight": 0.5}
    )
    penalty = 0.5 * sum(log(r) ** 2 for row in RATIOS for r in row) / 6
    assert value == pytest.approx(-(2 * 0.5 + 2 * 1.1 - 1.4 - 4.0) / 6 + penalty)
    pull = [[log(r) / 6 for r in row] for row in RATIOS]  # the penalty's gradient, 2 * 0.5 log(r) / 6, also of dropped
    assert grad[0] == pytest.approx([2 * 0.5 / 6 - pull[0][0], 2 * 1.1 / 6 - pull[0][1], -pull[0][2]])
    assert grad[1] == pytest.approx([-pull[1][0], -1.4 / 6 - pull[1][1], -4.0 / 6 - pull[1][2]])
    assert (metrics["clip_low"], metrics["clip_high"]) == pytest.approx((1 / 6, 1 / 6))
    assert metrics["kl_loss"] == pytest.approx(penalty)


def test_dppos_ratio_is_that_to_the_engine():
    old = torch.tensor(OLD, dtype=torch.float64)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    engine = old - 0.1
    given = LossInputs(old, old, engine, advantages, mask=torch.ones(2, 3, dtype=torch.bool))
    config = ObjectiveConfig(
        surrogate="dppo", correction={"kind": "none"}, dppo={"low": 1.0, "high": 1.0, "kl_weight": 0}
    )
    wide = ObjectiveConfig(correction={"max": 1e9}, clip_low=1.0, clip_high=1e9)  # r w = pi / pi_rollout
    output, same = policy_loss(given, config), policy_loss(given, wide)
    torch.testing.assert_close(output.loss, same.loss)
    assert summarize([output.metrics])["ratio"] == pytest.approx(exp(0.1))


def test_on_policy_all_surrogates_have_the_gradient_of_reinforce():
    old = torch.tensor(OLD, dtype=torch.float64)
    advantages = torch.tensor(ADVANTAGES, dtype=torch.float64)
    for surrogate in ("ppo", "cispo", "gspo", "dppo"):
        logprobs = old.clone().requires_grad_()
        inputs = LossInputs(logprobs, old, old, advantages, mask=torch.ones(2, 3, dtype=torch.bool))
        config = ObjectiveConfig(surrogate=surrogate, aggregation="sequence", correction={"kind": "none"})
        policy_loss(inputs, config).loss.backward()
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
