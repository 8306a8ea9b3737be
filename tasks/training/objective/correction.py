"""Weights that correct for the engine having sampled from slightly other probabilities than the learner's."""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import torch
from torch import Tensor

from tasks.training.objective.config import CorrectionConfig
from tasks.training.objective.ratios import bounded_exp
from tasks.training.objective.segments import mean_per_sequence, sum_per_sequence


class Correction(NamedTuple):
    """Per-token correction; all `[batch, seq]`."""

    weights: Tensor
    """Factor on each token's term of the objective; carries no gradient."""
    out_of_bounds: Tensor
    """bool: the weight was truncated (`tis`, `sequence_truncate`) or the token dropped (the others)."""
    off_policy: Tensor
    """bool: the token's sequence was dropped by `off_policy_threshold`."""


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
    """The correction that `CorrectionConfig` describes, from `w = exp(old_logprobs - rollout_logprobs)`.

    Args:
        logprobs: `[batch, seq]`, under the policy that is being trained; read by `off_policy_threshold` only.
        old_logprobs: `[batch, seq]`, under the learner's policy at rollout time.
        rollout_logprobs: `[batch, seq]`, as the engine reported them.
        advantages: `[batch, seq]`; their signs are read by `off_policy_threshold` only.
        mask: bool `[batch, seq]`, trained tokens; what is taken over a sequence is taken over these.
        sequence_ids: `[batch, seq]` for packed rows, else None.
        config: kind and bounds, both inclusive.
    """
    weights, outside = _weights(old_logprobs - rollout_logprobs, mask, sequence_ids, config)
    off_policy = torch.zeros_like(mask)
    if config.off_policy_threshold is not None:
        drift = mean_per_sequence(rollout_logprobs - logprobs, mask, sequence_ids)
        off_policy = mask & (advantages < 0) & (drift > config.off_policy_threshold)
    return Correction(weights.masked_fill(off_policy, 0.0), outside, off_policy)


def _weights(
    log_weights: Tensor, mask: Tensor, sequence_ids: Tensor | None, config: CorrectionConfig
) -> tuple[Tensor, Tensor]:
    """Weights, and which of them are out of bounds."""
    weights, least, most = bounded_exp(log_weights), config.min or 0.0, config.max or inf
    match config.kind:
        case "none":
            return torch.ones_like(weights), torch.zeros_like(mask)
        case "tis":
            return weights.clamp(max=most), weights > most
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
