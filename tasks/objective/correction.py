"""Computes importance weights for the difference between the engine's and the learner's probabilities."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.objective.divergence import compute_binary_divergence
from tasks.objective.ratios import bounded_exp
from tasks.objective.segments import mean_per_sequence, sum_per_sequence
from tasks.recipe.correction import CorrectionConfig, MaskConfig


class Correction(NamedTuple):
    """The engine-learner correction of each token; all `[batch, seq]`."""

    weights: Tensor
    """Factor on each token's term of the objective; carries no gradient."""
    out_of_bounds: Tensor
    """bool; True if the weight was truncated (`tis`, `sequence_truncate`) or the token dropped (the other kinds)."""
    off_policy: Tensor
    """bool; True if the token's sequence was dropped by `off_policy_threshold`."""
    masked: Tensor
    """bool; True if the token was dropped by `mask`."""


@torch.no_grad()
def correction(
    logprobs: Tensor,
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequence_ids: Tensor | None,
    config: CorrectionConfig,
) -> Correction:
    """Compute the correction that `CorrectionConfig` describes, from `w = exp(old_logprobs - rollout_logprobs)`.

    Args:
        logprobs: `[batch, seq]`, nats, under the policy that is being trained; used for `off_policy_threshold` only.
        old_logprobs: `[batch, seq]`, nats, under the learner's policy before the first update on the batch.
        rollout_logprobs: `[batch, seq]`, nats, as the engine reported them.
        advantages: `[batch, seq]`; their signs are used for `off_policy_threshold` and `mask.increase_only`.
        mask: bool `[batch, seq]`, trained tokens; sums and means over a sequence use only these.
        sequence_ids: `[batch, seq]` for packed rows, else None.
        config: kind and bounds, both inclusive.
    """
    weights, outside = _compute_weights(old_logprobs - rollout_logprobs, mask, sequence_ids, config)
    off_policy = torch.zeros_like(mask)
    if config.off_policy_threshold is not None:
        drift = mean_per_sequence(rollout_logprobs - logprobs, mask, sequence_ids)
        off_policy = mask & (advantages < 0) & (drift > config.off_policy_threshold)
    masked = torch.zeros_like(mask)
    if config.mask is not None:
        masked = _find_masked(old_logprobs, rollout_logprobs, advantages, mask, sequence_ids, config.mask)
    return Correction(weights.masked_fill(off_policy | masked, 0.0), outside, off_policy, masked)


def _find_masked(
    old_logprobs: Tensor,
    rollout_logprobs: Tensor,
    advantages: Tensor,
    mask: Tensor,
    sequence_ids: Tensor | None,
    config: MaskConfig,
) -> Tensor:
    """Return the trained tokens that `MaskConfig` drops, bool `[batch, seq]`."""
    log_weights = old_logprobs - rollout_logprobs
    match config.metric:
        case "ratio":
            values = log_weights
        case "tv":
            values = (bounded_exp(log_weights) - 1).abs()
        case "binary_tv":
            values = compute_binary_divergence(old_logprobs, rollout_logprobs, "tv")
        case "binary_kl":
            values = compute_binary_divergence(old_logprobs, rollout_logprobs, "kl")
    if config.level == "sequence":
        values = mean_per_sequence(values, mask, sequence_ids)
    if config.metric == "ratio":
        values = bounded_exp(values)
    outside = (values < (config.min or 0.0)) | (values > (config.max or inf))
    if config.increase_only:
        outside &= advantages * log_weights > 0
    return mask & outside


def _compute_weights(
    log_weights: Tensor, mask: Tensor, sequence_ids: Tensor | None, config: CorrectionConfig
) -> tuple[Tensor, Tensor]:
    """Return the weights, and a bool tensor that marks the ones out of bounds; both `[batch, seq]`."""
    weights, least, most = bounded_exp(log_weights), config.min or 0.0, config.max or inf
    match config.kind:
        case "none":
            return torch.ones_like(weights), torch.zeros_like(mask)
        case "tis":
            return weights.clamp(min=config.min, max=most), (weights < least) | (weights > most)
        case "sequence_truncate" | "sequence_mask":
            whole = bounded_exp(sum_per_sequence(log_weights.masked_fill(~mask, 0.0), sequence_ids))
            outside = whole > most
            if config.kind == "sequence_truncate":
                return whole.clamp(max=most), outside
            return whole.masked_fill(outside, 0.0), outside
        case "icepop" | "seq_mask_tis":
            per_sequence = config.kind == "seq_mask_tis"
            judged = bounded_exp(mean_per_sequence(log_weights, mask, sequence_ids)) if per_sequence else weights
            outside = (judged < least) | (judged > most)
            return weights.masked_fill(outside, 0.0), outside
