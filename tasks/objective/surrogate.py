"""Computes each token's surrogate objective, before correction and aggregation: importance ratio and clipping."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from tasks.objective.divergence import compute_binary_divergence
from tasks.objective.ratios import bounded_exp
from tasks.objective.segments import mean_per_sequence
from tasks.recipe.objective import ObjectiveConfig


class Clipped(NamedTuple):
    """Tokens that have no gradient because of a bound of the surrogate; bool `[batch, seq]` each."""

    low: Tensor
    """The ratio is below `1 - clip_low`, or the token left the trust region of `dppo` downwards."""
    high: Tensor
    """The ratio is above `1 + clip_high`, or the token left the trust region of `dppo` upwards."""
    dual: Tensor
    """The advantage is negative and the ratio above `dual_clip`."""


def compute_importance_ratio(
    logprobs: Tensor, old_logprobs: Tensor, mask: Tensor, sequence_ids: Tensor | None, config: ObjectiveConfig
) -> Tensor:
    """Return the importance ratio `r = pi / pi_old`, `[batch, seq]`; the gradient flows through `logprobs`.

    It is `exp(logprobs - old_logprobs)` of each token. For `gspo` it is the ratio of the sequence,
    `exp(mean_t(logprobs - old_logprobs))`, for each of its tokens, with a separate gradient for every token
    (GSPO-token, Zheng et al. 2025, arXiv:2507.18071, eq. 14). Summed over the tokens with weights of one over the
    length, its value equals the sequence's ratio (eq. 7), and so does its gradient if all tokens of a sequence have the
    same off-policy weight. With `force_on_policy_ratio` it is 1.

    Args:
        logprobs: `[batch, seq]`, nats, under the policy that is being trained.
        old_logprobs: `[batch, seq]`, nats, under the policy before the first update on the batch; for `dppo`, under the
            engine.
        mask: bool `[batch, seq]`, trained tokens.
        sequence_ids: `[batch, seq]` for packed rows, else None.
        config: only `surrogate` and `force_on_policy_ratio` are read.
    """
    log_ratio = logprobs - (logprobs.detach() if config.force_on_policy_ratio else old_logprobs)
    if config.surrogate == "gspo":
        log_ratio = mean_per_sequence(log_ratio.detach(), mask, sequence_ids) + logprobs - logprobs.detach()
    return bounded_exp(log_ratio)


def surrogate(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: ObjectiveConfig) -> Tensor:
    """Return the term of each token that is maximised, `[batch, seq]`.

    With `clip(r)` for r clamped to `[1 - clip_low, 1 + clip_high]`:

    - `ppo`, and `gspo` with its own r: `min(r A, clip(r) A)`. With `dual_clip` c, if A < 0, at least `c A` (dual-clip
      PPO, Ye et al. 2020, arXiv:1912.09729, eq. 5), so that a token that has become much more likely cannot dominate
      the batch;
    - `cispo`: `clip(r) A log pi`, no gradient through `clip(r)` (MiniMax-M1, arXiv:2506.13585, eq. 4): a clipped token
      keeps a gradient of bounded weight. The paper sets no lower bound, which is `clip_low: 1`;
    - `dppo`: `r A` with `r = pi / pi_rollout`, and 0 for the tokens that `DPPOConfig` drops: A < 0, r < 1 and a
      divergence above `dppo.low`, or A > 0, r > 1 and a divergence above `dppo.high` (DPPO, arXiv:2602.04879, eq. 11
      and 12). Tokens that move back to the engine's probability keep their gradient.
    """
    if config.surrogate == "dppo":
        outside = _find_outside_region(ratio, logprobs, advantages, config)
        return (ratio * advantages).masked_fill(outside.low | outside.high, 0.0)
    clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
    if config.surrogate == "cispo":
        return clipped.detach() * advantages * logprobs
    term = torch.minimum(ratio * advantages, clipped * advantages)
    if config.dual_clip is None:
        return term
    return torch.where(advantages < 0, torch.maximum(term, config.dual_clip * advantages), term)


@torch.no_grad()
def find_clipped(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: ObjectiveConfig) -> Clipped:
    """Find the tokens that have no gradient because of a bound of `surrogate`; all tensors are `[batch, seq]`."""
    if config.surrogate == "dppo":
        return _find_outside_region(ratio, logprobs, advantages, config)
    low, high = ratio < 1 - config.clip_low, ratio > 1 + config.clip_high
    if config.surrogate == "cispo":  # its weights are clipped for any advantage
        return Clipped(low, high, torch.zeros_like(low))
    negative, beyond = advantages < 0, config.dual_clip is not None and ratio > config.dual_clip
    return Clipped(negative & low, (advantages > 0) & high, negative & beyond)


@torch.no_grad()
def _find_outside_region(ratio: Tensor, logprobs: Tensor, advantages: Tensor, config: ObjectiveConfig) -> Clipped:
    """Find the tokens that have left the trust region of `dppo`, and that the update would move further away."""
    divergence = compute_binary_divergence(logprobs, logprobs - ratio.log(), config.dppo.divergence)
    low = (advantages < 0) & (ratio < 1) & (divergence > config.dppo.low)
    high = (advantages > 0) & (ratio > 1) & (divergence > config.dppo.high)
    return Clipped(low, high, torch.zeros_like(low))
