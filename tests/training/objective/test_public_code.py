"""Members of the objective against public code: constants that its functions returned once for the tensors below.

The functions ran outside of this repository, on float64 tensors; open-instruct computes weights in float32.
"""

import pytest
import torch

from tasks.training.objective import CorrectionConfig
from tasks.training.objective.correction import correction


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
