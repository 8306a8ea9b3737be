"""Members of the objective against public code: constants that its functions returned once for the tensors below.

The functions ran outside of this repository, on float64 tensors; open-instruct computes weights in float32.
"""

import pytest
import torch

from tasks.objective import LossInputs, compute_advantages, policy_loss, summarize
from tasks.objective.correction import correction
from tasks.recipe.correction import CorrectionConfig
from tasks.recipe.objective import ObjectiveConfig


def tensor(values):
    return torch.tensor(values, dtype=torch.float64)


ENGINE = tensor([[-0.9, -0.3, -2.2, -0.05, -1.4], [-1.1, -0.6, -3.0, -0.2, -0.7]])
OLD = tensor([[-0.7, -0.35, -1.2, -0.04, -2.3], [-1.0, -1.5, -2.1, -0.25, -0.7]])
NEW = tensor([[-0.4, -0.5, -1.0, -0.02, -2.0], [-1.6, -1.2, -1.9, -0.65, -0.4]])
ADVANTAGES = tensor([[0.75] * 5, [-1.25] * 5])
MASK = torch.tensor([[True] * 5, [True] * 4 + [False]])

# NVIDIA-NeMo/RL, nemo_rl/algorithms/loss/loss_functions.py at 006907a9570734f3e5d484c08ada84b0b89224c9: the branch
# `tis` of ClippedPGLossFn with truncated_importance_sampling_ratio_min 0.6 and truncated_importance_sampling_ratio 2
NEMO_TIS = [[1.2214028, 0.9512294, 2.0, 1.0100502, 0.6], [1.1051709, 0.6, 2.0, 0.9512294]]
NEMO_OUT_OF_BOUNDS = 4 / 9

# allenai/open-instruct, open_instruct/grpo_utils.py, `compute_rho_correction` as merged with pull request 1681: TV
# divergence up to 0.53 by sequence, weights up to 2
RHO_1681 = [[1.2214028, 0.9512294, 2.0, 1.0100502, 0.4065697], [1.1051709, 0, 2.0, 0]]

# the same function in pull request 1755 (open in July 2026), with rho_mask_source old_policy
RHO_1755 = [
    (
        {"min": 0.8, "max": 1.5, "mask": {"min": 0.5, "max": 2.6}},
        [[1.2214028, 0.9512295, 0, 1.0100502, 0], [1.105171, 0, 1.5, 0.9512295]],
    ),
    (
        {"min": 0.8, "max": 1.5, "mask": {"level": "sequence", "min": 0.99, "max": 1.03}},
        [[0, 0, 0, 0, 0], [1.105171, 0.8, 1.5, 0.9512295]],
    ),
    (
        {"mask": {"metric": "binary_tv", "max": 0.1}},
        [[1.2214028, 0.9512295, 0, 1.0100502, 0], [1.105171, 0, 2.0, 0.9512295]],
    ),
    (
        {"mask": {"metric": "binary_tv", "max": 0.1, "increase_only": True}},
        [[1.2214028, 0.9512295, 0, 1.0100502, 0.4065697], [1.105171, 0, 2.0, 0.9512295]],
    ),
    (
        {"mask": {"metric": "binary_tv", "level": "sequence", "max": 0.1, "increase_only": True}},
        [[1.2214028, 0.9512295, 2.0, 1.0100502, 0.4065697], [1.105171, 0, 2.0, 0]],
    ),
    (
        {"mask": {"metric": "binary_kl", "level": "sequence", "max": 0.07}},
        [[1.2214028, 0.9512295, 2.0, 1.0100502, 0.4065697], [0, 0, 0, 0]],
    ),
    ({"kind": "none", "mask": {"metric": "binary_kl", "max": 0.05}}, [[1, 1, 0, 1, 0], [1, 0, 1, 1]]),
]


def corrected(config, dtype=torch.float64):
    """The correction's weights of the trained tokens, row by row, and the share out of bounds."""
    tensors = (values.to(dtype) for values in (NEW, OLD, ENGINE, ADVANTAGES))
    made = correction(*tensors, MASK, None, CorrectionConfig(**config))
    rows = [row[mask].tolist() for row, mask in zip(made.weights, MASK, strict=True)]
    return rows, made.out_of_bounds[MASK].double().mean().item()


def near(rows, tolerance=2e-7):
    return [pytest.approx(row, abs=tolerance) for row in rows]


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_truncation_from_both_sides_is_nemo_rls(dtype):
    weights, share = corrected({"min": 0.6, "max": 2.0}, dtype)
    assert weights == near(NEMO_TIS)
    assert share == pytest.approx(NEMO_OUT_OF_BOUNDS)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("config", "weights"), RHO_1755)
def test_clamp_and_mask_are_open_instructs(config, weights, dtype):
    assert corrected(config, dtype)[0] == near(weights)


def test_the_total_variation_mask_is_open_instructs():
    mask = {"metric": "tv", "level": "sequence", "max": 0.53, "increase_only": True}
    assert corrected({"mask": mask})[0] == near(RHO_1681)


# PrimeIntellect-ai/prime-rl, src/prime_rl/trainer/rl/loss.py at f4bbacd76970fa654f93949d59c960457cf16894:
# `default_loss_fn` of each row with dppo_mask_low, dppo_mask_high and kl_tau, divided by the 9 trained tokens
PRIME_RL = [
    (
        (0.2, 0.2, 1e-3),
        0.3021096180255211,
        [[0.0001111, -0.068272, 0.0002667, -0.0858645, -0.0458676], [0.0841293, -0.0001333, 0.4174897, -0.0001, 0]],
        (2, 2),
    ),
    (
        (0.1, 0.15, 0.5),
        0.44593442639876657,
        [[0.0555556, -0.0904498, 0.1333333, -0.0825379, -0.112401], [-0.0555556, -0.0666667, 0.5394675, -0.05, 0]],
        (3, 2),
    ),
]

# allenai/open-instruct, open_instruct/grpo_utils.py at 0063d1271f28a3f7f9a086cfbd2a4801b59a5357: `compute_dppo_mask`
# with the ratio of NEW to ENGINE. Pull request 1755 gives the same for `kl`, as weights of its loss `dppo`.
DPPO_KEPT = {
    ("tv", 0.15): [[0, 1, 0, 1, 1], [1, 0, 1, 0]],
    ("tv", 0.12): [[0, 1, 0, 1, 1], [0, 0, 1, 0]],
    ("kl", 0.05): [[0, 1, 0, 1, 1], [1, 0, 1, 0]],
    ("kl", 0.046): [[0, 1, 0, 1, 1], [0, 0, 1, 0]],
}


def run_dppo(dtype=torch.float64, **options):
    """Loss, gradient and metrics of `surrogate: dppo`."""
    config = ObjectiveConfig(surrogate="dppo", correction={"kind": "none"}, dppo=options)
    old, engine, advantages = (values.to(dtype) for values in (OLD, ENGINE, ADVANTAGES))
    logprobs = NEW.clone().to(dtype).requires_grad_()
    output = policy_loss(LossInputs(logprobs, old, engine, advantages, MASK), config)
    output.loss.backward()
    return output.loss.item(), logprobs.grad.tolist(), summarize([output.metrics])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize(("options", "loss", "gradient", "dropped"), PRIME_RL)
def test_dppo_with_its_kl_term_is_prime_rls_default_loss(options, loss, gradient, dropped, dtype):
    low, high, weight = options
    value, grad, metrics = run_dppo(dtype, low=low, high=high, kl_weight=weight)
    assert value == pytest.approx(loss, rel=1e-12 if dtype == torch.float64 else 1e-6)
    assert grad == near(gradient)
    assert (metrics["clip_low"] * 9, metrics["clip_high"] * 9) == pytest.approx(dropped)
    assert metrics["loss"] == pytest.approx(metrics["policy_loss"] + metrics["kl_loss"])


@pytest.mark.parametrize(("region", "kept"), DPPO_KEPT.items())
def test_binary_dppo_drops_what_open_instructs_mask_drops(region, kept):
    divergence, bound = region
    _, grad, metrics = run_dppo(divergence=divergence, low=bound, high=bound, kl_weight=0)
    ratio = (NEW - ENGINE).exp()
    torch.testing.assert_close(tensor(grad), -ratio * ADVANTAGES * tensor([kept[0], [*kept[1], 0]]) / 9)
    assert (metrics["clip_low"] + metrics["clip_high"]) * 9 == pytest.approx(9 - sum(map(sum, kept)))


REWARDS = tensor([[1, 0, 0, 1, 0], [0, 0, 0.5, 0, 1]])

# tajwarfahim/maxrl, verl/trainer/ppo/core_algos.py at 7db6bb90ab98b4ecbfc84d78dc178c838e10e5ad, the authors' code:
# `compute_p_normalization_outcome_advantage`, in float32. It adds 1e-6 to the mean, which the paper does not.
MAXRL = [
    [1.4999961853027344, -0.9999974966049194, -0.9999974966049194, 1.4999961853027344, -0.9999974966049194],
    [-0.9999966025352478, -0.9999966025352478, 0.6666643619537354, -0.9999966025352478, 2.3333253860473633],
]

RANKED = tensor([[1, 0, 0, 1, 0], [0.2, 0.9, 0.5, 0.1, 0.6]])

# kpahwa16/pass-k-policy-optimization, pkpo_core.py at 1b0928e6eef4f28e355b88cd40f0247263bff22d: `sloo_minus_one` of
# each row, the listing of arXiv:2505.15201. The paper sums over the 5 samples, and the loss here averages over them.
SLOO_MINUS_ONE = {
    2: [[0.3, 0, 0, 0.3, 0], [0.01, 0.22, 0.07, 0, 0.1]],
    3: [[0.3, 0, 0, 0.3, 0], [0, 0.24, 0.03, 0, 0.06]],
    5: [[0, 0, 0, 0, 0], [0, 0.3, 0, 0, 0]],
}


def test_maxrl_is_its_authors_estimator():
    advantages = compute_advantages(REWARDS, torch.ones_like(REWARDS), ObjectiveConfig(advantage="maxrl"))
    # 1e-6 over the means 0.4 and 0.3, and float32
    torch.testing.assert_close(advantages, tensor(MAXRL), rtol=1e-6 / 0.3 + 2e-7, atol=0)


@pytest.mark.parametrize("k", SLOO_MINUS_ONE)
def test_pass_at_k_is_pkpos_recommended_estimator(k):
    config = ObjectiveConfig(advantage="pass_at_k", pass_at_k=k)
    advantages = compute_advantages(RANKED, torch.ones_like(RANKED), config)
    torch.testing.assert_close(advantages, 5 * tensor(SLOO_MINUS_ONE[k]), rtol=0, atol=1e-9)
