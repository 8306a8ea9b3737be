"""Computes advantages of rollouts from the rewards of their groups.

A group contains the rollouts of one prompt: row `g` of `[groups, samples]`. Groups may differ in size: `present` is
true for the samples that exist, and other values are not read. All arithmetic is in float64, so that subtracting a
group's mean leaves no rounding noise for the optimizer to amplify. Rewards that differ by rounding alone are equal.
"""

from __future__ import annotations

from math import comb

import torch
from torch import Tensor

from tasks.failures import MistakeError
from tasks.objective.rounding import ROUNDING
from tasks.recipe.objective import ObjectiveConfig

GROUP_STD_EPSILON = 1e-6
"""Number added to a group's standard deviation before dividing by it."""
GLOBAL_VARIANCE_FLOOR = 1e-8
"""Smallest variance over a batch to divide by. Its square root, 1e-4, is the smallest root mean square to divide by."""


def compute_advantages(
    rewards: Tensor, num_tokens: Tensor, config: ObjectiveConfig, present: Tensor | None = None
) -> Tensor:
    """Compute one advantage per rollout; every token of the rollout shares it.

    With r the rewards of a group and G its size (the number of present samples):

    - `group_mean` (OlmoRL, Dr GRPO): `r - mean(r)`;
    - `group_norm` (GRPO, DAPO): `(r - mean(r)) / (std(r) + 1e-6)` with the sample standard deviation (divisor G - 1).
      The papers do not specify the divisor; this is the one in DAPO's published code;
    - `leave_one_out` (RLOO): `r_i - mean(r_j, j != i)`, which is `G / (G - 1)` times `group_mean`;
    - `reinforce_pp` (REINFORCE++): `r`, normalised over the batch;
    - `reinforce_pp_baseline` (REINFORCE++-baseline, ProRLv2): `r - mean(r)`, normalised over the batch;
    - `maxrl` (MaxRL, Tajwar et al. 2026, arXiv:2602.02710): `(r - mean(r)) / mean(r)`, and 0 if `mean(r)`
      is 0. With rewards of 0 and 1, the gradient is on average that of `sum_k pass@k / k` for k < G, a series whose
      limit is log pass@1;
    - `pass_at_k` (PKPO, Walder and Karkhanis 2025, arXiv:2505.15201, eq. 33, `sloo_minus_one`): k times the mean of
      `max(r_i - max(r_j, j in J), 0)` over all sets J of k - 1 other samples of the group. It is G times the paper's,
      since the loss averages over samples. The gradient is on average that of the largest of k rewards, which is
      pass@k for rewards of 0 and 1. If G < k, k is G.

    "Normalised over the batch" is `(A - mean) / sqrt(max(var, 1e-8))`, with both moments over all valid response
    tokens, so each rollout is weighted by its length. `normalization` replaces the division of the estimator. For
    `leave_one_out`, normalization by the group divides by `std(r_j, j != i) + 1e-6`, and does not divide if these
    rewards are all equal (NeMo RL's `GRPOAdvantageEstimator`, but with the sample standard deviation).

    Args:
        rewards: `[groups, samples]`, floating point.
        num_tokens: `[groups, samples]`, number of response tokens of each rollout.
        config: only `advantage`, `pass_at_k` and `normalization` are read.
        present: `[groups, samples]`, bool. Optional. If None, every group has all samples.

    Returns:
        `[groups, samples]` in the dtype of `rewards`. A group of equal rewards gets exactly 0 before any normalisation
        over the batch; a sample that is not present gets exactly 0.

    Raises:
        ValueError: shapes are not `[groups, samples]` or differ; a group has no sample; a reward is not finite; a
            length is negative; `leave_one_out` is used with groups of one; `advantage` is a function of the user's.
        MistakeError: a reward is negative, and `maxrl` is used.
    """
    _check_shapes(rewards, num_tokens)
    present = _check_present(present, rewards.shape, rewards.device)
    r = rewards.double().masked_fill(~present, 0.0)
    lengths = num_tokens.masked_fill(~present, 0)
    _check_values(r, lengths)
    match config.advantage:
        case "group_mean" | "group_norm" | "reinforce_pp_baseline":
            advantages = _centre(r, present)
        case "leave_one_out":
            advantages = _leave_one_out(r, present)
        case "reinforce_pp":
            advantages = r
        case "maxrl":
            advantages = _divide_by_mean(r, present)
        case "pass_at_k":
            assert config.pass_at_k is not None
            advantages = _compute_gains(r, present, config.pass_at_k)
        case _:
            raise ValueError(f"advantage.function = {config.advantage.function} is not computed here")
    match config.normalized_by:
        case "group" if config.advantage == "leave_one_out":
            deviation = _compute_std_of_others(r, present)
            advantages = torch.where(deviation > 0, advantages / (deviation + GROUP_STD_EPSILON), advantages)
        case "group":
            advantages = advantages / (_compute_std(r, present) + GROUP_STD_EPSILON)
        case "batch":
            advantages = _normalise(advantages, lengths, present)
        case "none":
            pass
    return advantages.to(rewards.dtype)


def normalize_then_sum(rewards: Tensor, weights: Tensor, present: Tensor | None = None) -> Tensor:
    """Compute one advantage per rollout from several rewards, each normalised separately (GDPO, Liu et al. 2026).

    With r_k the k-th reward within a group: `A = sum_k w_k (r_k - mean(r_k)) / (std(r_k) + 1e-6)`, then divided by its
    root mean square over the batch (at least 1e-4); its mean is 0 already. So a reward with a large scale, or a reward
    that rarely varies, does not dominate the others.

    Args:
        rewards: `[groups, samples, rewards]`, floating point; NaN if a reward does not apply to a rollout. It is then
            excluded from the mean, the deviation and this rollout's advantage.
        weights: `[groups, rewards]`; not read if a group's rewards are all NaN.
        present: `[groups, samples]`, bool. Optional. If None, every group has all samples. Only present samples count
            in the root mean square.

    Returns:
        `[groups, samples]` in the dtype of `rewards`; exactly 0 in a group whose rewards do not vary, and for a sample
        that is not present.

    Raises:
        ValueError: shapes do not fit, a group has no sample, or a reward is infinite.
    """
    if rewards.ndim != 3 or weights.shape != (rewards.shape[0], rewards.shape[2]) or rewards.numel() == 0:
        raise ValueError(
            "rewards must be a non-empty [groups, samples, rewards] and weights [groups, rewards], "
            f"got {list(rewards.shape)} and {list(weights.shape)}"
        )
    present = _check_present(present, rewards.shape[:2], rewards.device)
    rewards = rewards.masked_fill(~present[:, :, None], torch.nan)
    if rewards.isinf().any():
        raise ValueError("a reward is infinite")
    r = rewards.double().transpose(1, 2)  # [groups, rewards, samples]
    given = ~r.isnan()
    count = given.sum(dim=2, keepdim=True)
    mean = r.nan_to_num().sum(dim=2, keepdim=True) / count.clamp(min=1)
    centred = (r - mean).masked_fill(~given, 0.0)
    varies = ~_are_equal(r, given) & (count.squeeze(2) > 1)
    std = (centred.square().sum(dim=2) / (count.squeeze(2) - 1).clamp(min=1)).sqrt()
    scale = weights.double().nan_to_num() * varies / (std + GROUP_STD_EPSILON)  # [groups, rewards]
    summed = (centred.masked_fill(~varies[:, :, None], 0.0) * scale[:, :, None]).sum(dim=1)
    mean_square = summed[present].square().mean()
    return (summed * mean_square.clamp(min=GLOBAL_VARIANCE_FLOOR).rsqrt()).to(rewards.dtype)


def find_zero_variance(rewards: Tensor, present: Tensor | None = None) -> Tensor:
    """Find zero-variance groups, whose equal rewards give no gradient: `[groups, samples]` -> bool `[groups]`."""
    return _are_equal(rewards, _check_present(present, rewards.shape, rewards.device))


def _are_equal(values: Tensor, given: Tensor) -> Tensor:
    """Return whether the given values are equal but for `ROUNDING`: `[..., n]` -> bool `[...]`, true if none is given.

    Args:
        values: the values, which are read only if they are given.
        given: bool, in the shape of `values`.
    """
    highest = values.masked_fill(~given, -torch.inf).amax(dim=-1)
    lowest = values.masked_fill(~given, torch.inf).amin(dim=-1)
    return highest - lowest <= ROUNDING * torch.maximum(highest.abs(), lowest.abs())


# Below, rewards of absent samples are 0, so that the sum over a row is the sum over its group.


def _count_present(present: Tensor) -> Tensor:
    return present.sum(dim=1, keepdim=True).double()  # [groups, 1]


def _centre(r: Tensor, present: Tensor) -> Tensor:
    centred = r - r.sum(dim=1, keepdim=True) / _count_present(present)
    return centred.masked_fill(~present | find_zero_variance(r, present)[:, None], 0.0)


def _compute_std(r: Tensor, present: Tensor) -> Tensor:
    # [groups, 1]; the deviation of a group of one is 0; the divisor G - 1 would make it NaN
    squares = _centre(r, present).square().sum(dim=1, keepdim=True)
    return (squares / (_count_present(present) - 1).clamp(min=1)).sqrt()


def _leave_one_out(r: Tensor, present: Tensor) -> Tensor:
    size = _count_present(present)
    if (size < 2).any():
        raise ValueError("advantage = leave_one_out needs at least 2 samples per group, got 1")
    return _centre(r, present) * (size / (size - 1))


def _divide_by_mean(r: Tensor, present: Tensor) -> Tensor:
    if (r < 0).any():
        raise MistakeError(
            f"objective.advantage = maxrl divides by the mean reward of a group, and a reward is {r.min().item():g}: "
            "give rewards that are not negative, or another estimator"
        )
    mean = r.sum(dim=1, keepdim=True) / _count_present(present)
    return _centre(r, present) / mean.where(mean > 0, 1.0)


def _compute_gains(r: Tensor, present: Tensor, k: int) -> Tensor:
    """Return for each sample k times the mean of what it adds to the maximum of k - 1 others: `[groups, samples]`."""
    ascending = r.masked_fill(~present, torch.inf).sort(dim=1).values
    chances = [_compute_maximum_chances(size, r.shape[1], k) for size in present.sum(dim=1).tolist()]
    gains = (r[:, :, None] - ascending[:, None, :]).clamp(min=0)  # [groups, samples, ranks]
    expected = (gains * torch.tensor(chances, dtype=r.dtype, device=r.device)[:, None, :]).sum(dim=2)
    return expected.masked_fill(~present | find_zero_variance(r, present)[:, None], 0.0)


def _compute_maximum_chances(size: int, ranks: int, k: int) -> list[float]:
    """Return for each rank i (from 0, ascending) k times the chance that the best of k - 1 other samples has it.

    The ranks are within a group of `size` samples and below the sample's own. A set of k - 1 others whose best has rank
    i contains k - 2 of the i samples below it.
    """
    k = min(k, size)
    return [k * comb(i, k - 2) / comb(size - 1, k - 1) if k > 1 else 0.0 for i in range(ranks)]


def _compute_std_of_others(r: Tensor, present: Tensor) -> Tensor:
    # [groups, samples]; exactly 0 if the other rewards are all equal, which the sums of squares would not give.
    # `others` is [groups, samples, samples]: for each sample, the other samples.
    others = present[:, None, :] & ~torch.eye(r.shape[1], dtype=torch.bool, device=r.device)
    count = others.sum(dim=2, keepdim=True)
    values = r[:, None, :].expand_as(others)
    centred = (values - values.masked_fill(~others, 0.0).sum(dim=2, keepdim=True) / count.clamp(min=1)) * others
    deviation = (centred.square().sum(dim=2) / (count.squeeze(2) - 1).clamp(min=1)).sqrt()
    return deviation.masked_fill(_are_equal(values, others), 0.0)


def _normalise(advantages: Tensor, num_tokens: Tensor, present: Tensor) -> Tensor:
    if _are_equal(advantages[present], present[present]):
        return torch.zeros_like(advantages)
    weights = num_tokens.double() / num_tokens.sum().clamp(min=1)
    centred = advantages - (weights * advantages).sum()
    variance = (weights * centred.square()).sum()
    return (centred * variance.clamp(min=GLOBAL_VARIANCE_FLOOR).rsqrt()).masked_fill(~present, 0.0)


def _check_present(present: Tensor | None, shape: torch.Size, device: torch.device) -> Tensor:
    if present is None:
        return torch.ones(shape, dtype=torch.bool, device=device)
    if present.dtype != torch.bool or present.shape != shape:
        raise ValueError(f"present must be bool {list(shape)}, got {present.dtype} {list(present.shape)}")
    if not present.any(dim=1).all():
        raise ValueError(f"group {present.any(dim=1).tolist().index(False)} has no sample")
    return present


def _check_shapes(rewards: Tensor, num_tokens: Tensor) -> None:
    if rewards.ndim != 2 or rewards.shape != num_tokens.shape or rewards.numel() == 0:
        raise ValueError(
            "rewards and num_tokens must both be a non-empty [groups, samples], "
            f"got {list(rewards.shape)} and {list(num_tokens.shape)}"
        )
    if not rewards.is_floating_point():
        raise ValueError(f"rewards must be floating point, got {rewards.dtype}")


def _check_values(rewards: Tensor, num_tokens: Tensor) -> None:
    if not rewards.isfinite().all():
        group, sample = (~rewards.isfinite()).nonzero()[0].tolist()
        raise ValueError(f"rewards[{group}, {sample}] is {rewards[group, sample].item()}, not a finite number")
    if (num_tokens < 0).any():
        raise ValueError(f"num_tokens must not be negative, got {num_tokens.min().item()}")
