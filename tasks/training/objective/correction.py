"""Weights that correct for the engine having sampled from slightly other probabilities than the learner's."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasks.training.objective.config import CorrectionConfig
from tasks.training.objective.ratios import bounded_exp
from tasks.training.objective.segments import sum_per_sequence


class Correction(NamedTuple):
    """Per-token correction; both `[batch, seq]`."""

    weights: Tensor
    """Factor on each token's term of the objective; carries no gradient."""
    out_of_bounds: Tensor
    """bool: the weight was truncated (`tis`) or the token dropped (`icepop`, `seq_mask_tis`)."""


@torch.no_grad()
def correction(
    old_logprobs: Tensor, rollout_logprobs: Tensor, mask: Tensor, sequence_ids: Tensor | None, config: CorrectionConfig
) -> Correction:
    """The correction that `CorrectionConfig` describes, from `w = exp(old_logprobs - rollout_logprobs)`.

    Args:
        old_logprobs: `[batch, seq]`, under the learner's policy at rollout time.
        rollout_logprobs: `[batch, seq]`, as the engine reported them.
        mask: bool `[batch, seq]`, trained tokens; the geometric mean of `seq_mask_tis` is over these.
        sequence_ids: `[batch, seq]` for packed rows, else None.
        config: kind and bounds, both inclusive.
    """
    log_weights = old_logprobs - rollout_logprobs
    weights = bounded_exp(log_weights)
    if config.kind == "none":
        return Correction(torch.ones_like(weights), torch.zeros_like(mask))
    assert config.max is not None
    if config.kind == "tis":
        return Correction(weights.clamp(max=config.max), weights > config.max)
    assert config.min is not None
    per_sequence = config.kind == "seq_mask_tis"
    judged = bounded_exp(_sequence_mean(log_weights, mask, sequence_ids)) if per_sequence else weights
    outside = (judged < config.min) | (judged > config.max)
    return Correction(weights.masked_fill(outside, 0.0), outside)


def _sequence_mean(values: Tensor, mask: Tensor, sequence_ids: Tensor | None) -> Tensor:
    # the geometric mean of ratios is the exponential of the mean of their logarithms
    total = sum_per_sequence(values.masked_fill(~mask, 0.0), sequence_ids)
    return total / sum_per_sequence(mask.to(values.dtype), sequence_ids).clamp(min=1)
