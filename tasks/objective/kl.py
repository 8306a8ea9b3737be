"""Estimates KL(policy || reference) per token (Schulman 2020, "Approximating KL divergence")."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from tasks.objective.ratios import bounded_exp
from tasks.recipe.objective import KLConfig, KLEstimator


def estimate_kl(logprobs: Tensor, ref_logprobs: Tensor, estimator: KLEstimator) -> Tensor:
    """Estimate KL(policy || reference) per token, from `d = log pi_ref - log pi` of a token sampled from the policy.

    - `k1`: `-d`. Unbiased, with high variance, sometimes negative; as a loss its expected gradient is zero.
    - `k2`: `d^2 / 2`. Biased, never negative; its gradient is the gradient of the true divergence.
    - `k3`: `exp(d) - d - 1`. Unbiased and never negative; GRPO's choice.

    Args:
        logprobs: `[batch, seq]`, nats; the gradient flows through them.
        ref_logprobs: `[batch, seq]`, nats.
        estimator: one of the above.

    Returns:
        `[batch, seq]`, nats.
    """
    d = ref_logprobs - logprobs
    match estimator:
        case "k1":
            return -d
        case "k2":
            return d.square() / 2
        case "k3":
            return bounded_exp(d) - d - 1


def estimate_response_kl(logprobs: Sequence[ArrayLike], ref_logprobs: Sequence[ArrayLike], config: KLConfig) -> Tensor:
    """Estimate the KL of whole responses, for `KLConfig.in_reward`: the sum over a response's tokens.

    Args:
        logprobs, ref_logprobs: `[n]` for each response of n tokens, nats. They are equal for tokens that are not
            trained, which add 0.
        config: only `estimator` is read.

    Returns:
        `[responses]`, float64, nats.
    """
    pairs = zip(logprobs, ref_logprobs, strict=True)
    estimates = (
        estimate_kl(_to_float64(own), _to_float64(reference), config.estimator).sum() for own, reference in pairs
    )
    return torch.stack(list(estimates))


def _to_float64(values: ArrayLike) -> Tensor:
    return torch.from_numpy(np.asarray(values, np.float64))
