"""Computes the policy-gradient loss of padded or packed batches.

The options `surrogate`, `correction` and `kl` are variations of the OlmoRL objective:

    J = 1 / sum_i |y_i|  *  sum_i sum_t  w_it * min(r_it A_it, clip(r_it, 1 - clip_low, 1 + clip_high) A_it)

    r = pi / pi_old                      the change of the policy by this update; the only factor with a gradient
    w = min(pi_old / pi_rollout, rho)    the difference between the learner's numerics and the engine's

and the loss is -J. The denominator counts the whole global batch, so that the losses (and gradients) of its
micro-batches add up to the loss (and gradient) of the batch, however it is split.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from tasks.objective.correction import correction
from tasks.objective.kl import estimate_kl
from tasks.objective.metrics import Measured, measure
from tasks.objective.ratios import bounded_exp
from tasks.objective.segments import sum_per_sequence
from tasks.objective.surrogate import compute_importance_ratio, find_clipped, surrogate
from tasks.recipe.objective import Aggregation, ObjectiveConfig
from tasks.recipe.own import OwnSurrogate, RowTerms, SurrogateRow


@dataclass(frozen=True)
class LossInputs:
    """One micro-batch. Every tensor is `[batch, seq]` and describes the predicted tokens.

    Log-probabilities are in nats, of the sampled token. Values outside the mask are never read, and may be NaN. A
    non-finite value at a trained position is an upstream error, and makes the loss or `mismatch` non-finite.
    """

    logprobs: Tensor
    """Log-probabilities under the policy that is being trained; the gradient flows through them."""
    old_logprobs: Tensor
    """Log-probabilities under the learner's policy before the first update on this rollout batch."""
    rollout_logprobs: Tensor
    """Log-probabilities as the inference engine reported them while sampling."""
    advantages: Tensor
    """Advantages; equal on all tokens of a rollout, unless a function of the user's returned one for each token."""
    mask: Tensor
    """1 or True on trained response tokens."""
    entropy: Tensor | None = None
    """Entropy of the policy's distribution, nats, differentiable; required if `entropy_coefficient > 0`."""
    ref_logprobs: Tensor | None = None
    """Log-probabilities under the reference policy; required if `kl.in_loss`."""
    denominator: float | Tensor | None = None
    """Divisor of the sum over the global batch, from `ObjectiveConfig.denominator`. Optional. If None, this micro-batch
    is the whole batch, and the divisor is computed from it."""
    sequence_ids: Tensor | None = None
    """Integers that identify the sequences of a packed row, -1 on padding. Optional. If None, each row is one sequence.
    A sequence may not be split over rows or micro-batches."""
    sample_tokens: Tensor | None = None
    """Integers: number of trained tokens of the token's sample. A sample may consist of several sequences (from an
    episode with a restarted conversation), also in other micro-batches. Optional. If None, each sequence is a
    sample."""


@dataclass(frozen=True)
class LossOutput:
    """Contains the loss of one micro-batch and its metrics."""

    loss: Tensor
    """0-d; call `backward` on it."""
    metrics: dict[str, Tensor]
    """Detached sums, counts and maxima, 0-d, from which `summarize` computes the metrics of the batch."""


def policy_loss(inputs: LossInputs, config: ObjectiveConfig, own: RowTerms | None = None) -> LossOutput:
    """Compute loss and metrics of one micro-batch.

    The loss is `sum(share * (-w * surrogate + beta * kl - entropy_coefficient * entropy)) / denominator`. `share` is 1,
    except with `sequence` aggregation: there it is one over the number of trained tokens of the token's sample. With
    `dppo`, `dppo.kl_weight * log(pi / pi_rollout)^2` is added to `beta * kl`.

    Args:
        inputs: the micro-batch; arithmetic is in its precision, but at least float32.
        config: the objective.
        own: the user's loss, if `config.surrogate` names one. Optional. If None, the surrogate is a built-in one.

    Returns:
        The loss and its metrics. Gradients are exactly zero outside the mask, and the loss of a micro-batch without a
        trained token is zero.

    Raises:
        ValueError: shapes differ, `kl.in_loss` has no `ref_logprobs`, `entropy_coefficient > 0` has no `entropy`, or
            `surrogate.function` has no `own`.
    """
    _check(inputs, config, own)
    mask = inputs.mask.bool()
    logprobs, old, rollout, advantages = (
        _select_trained(x, mask)
        for x in (inputs.logprobs, inputs.old_logprobs, inputs.rollout_logprobs, inputs.advantages)
    )
    old, rollout, advantages = old.detach(), rollout.detach(), advantages.detach()

    base = rollout if config.surrogate == "dppo" else old
    ratio = compute_importance_ratio(logprobs, base, mask, inputs.sequence_ids, config)
    engine = correction(logprobs, old, rollout, advantages, mask, inputs.sequence_ids, config.correction)

    sample_share = _sample_share(mask, inputs, logprobs.dtype)
    share = sample_share if config.aggregation == "sequence" else mask.to(logprobs.dtype)
    denominator = _compute_denominator(inputs.denominator, mask, sample_share, config)

    own_metrics: Mapping[str, Tensor] = {}
    if own is None:
        terms = surrogate(ratio, logprobs, advantages, config)
    else:
        ids = inputs.sequence_ids if inputs.sequence_ids is not None else torch.zeros_like(mask, dtype=torch.int64)
        terms, own_metrics = own(SurrogateRow(logprobs, old, rollout, advantages, mask, ids))
        terms = torch.where(mask, terms, 0.0)
    policy_part = -(share * engine.weights * terms).sum() / denominator
    nothing = torch.zeros_like(policy_part)
    kl, kl_part, entropy_part = None, nothing, nothing
    if config.kl.in_loss:
        assert inputs.ref_logprobs is not None
        kl = estimate_kl(logprobs, _select_trained(inputs.ref_logprobs, mask).detach(), config.kl.estimator)
        penalty = kl * bounded_exp(logprobs - old) if config.kl.importance_corrected else kl
        kl_part = config.kl.beta * (share * penalty).sum() / denominator
    if config.surrogate == "dppo":
        penalty = 2 * estimate_kl(logprobs, rollout, "k2")  # the squared log-ratio
        kl_part = kl_part + config.dppo.kl_weight * (share * penalty).sum() / denominator
    if config.entropy_coefficient > 0:
        assert inputs.entropy is not None
        entropy_part = -config.entropy_coefficient * (share * _select_trained(inputs.entropy, mask)).sum() / denominator
    loss = policy_part + kl_part + entropy_part

    with torch.no_grad():
        tokens = Measured(
            probability=bounded_exp(old),
            log_mismatch=old - rollout,
            ratio=ratio,
            clipped=None if own else find_clipped(ratio, logprobs, advantages, config),
            weights=engine.weights,
            out_of_bounds=engine.out_of_bounds,
            off_policy=engine.off_policy,
            masked=engine.masked,
            kl=kl,
            mask=mask,
            sample_share=sample_share,
            own=own_metrics,
        )
        parts = {"loss": loss, "policy_loss": policy_part, "kl_loss": kl_part, "entropy_loss": entropy_part}
        detached = {name: part.detach() for name, part in parts.items()}
        return LossOutput(loss=loss, metrics={**detached, **measure(tokens, config)})


def _select_trained(values: Tensor, mask: Tensor) -> Tensor:
    # Select before any arithmetic, to keep NaN and infinity at other positions out of the gradient: multiplying by the
    # mask afterwards would give 0 * inf.
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return torch.where(mask, values, 0.0)


def _sample_share(mask: Tensor, inputs: LossInputs, dtype: torch.dtype) -> Tensor:
    """Return one over the trained tokens of the token's sample, 0 outside the mask; its sum counts samples."""
    tokens = inputs.sample_tokens
    if tokens is None:
        tokens = sum_per_sequence(mask.to(dtype), inputs.sequence_ids)
    return mask / tokens.to(dtype).clamp(min=1)


def _compute_denominator(
    given: float | Tensor | None, mask: Tensor, sample_share: Tensor, config: ObjectiveConfig
) -> Tensor:
    if given is None:
        given = _count_units(mask, sample_share, config.aggregation) * (config.constant_length or 1)
    count = torch.as_tensor(given, dtype=sample_share.dtype, device=mask.device)
    # avoids 0 / 0 for a global batch without trained tokens
    return torch.where(count == 0, 1.0, count)


def _count_units(mask: Tensor, sample_share: Tensor, aggregation: Aggregation) -> Tensor:
    return mask.sum() if aggregation == "token" else sample_share.sum().round()


def _check(inputs: LossInputs, config: ObjectiveConfig, own: RowTerms | None) -> None:
    if isinstance(config.surrogate, OwnSurrogate) and own is None:
        raise ValueError(f"surrogate.function = {config.surrogate.function} needs own, got None")
    if config.kl.in_loss and inputs.ref_logprobs is None:
        raise ValueError(f"kl.beta = {config.kl.beta} needs ref_logprobs, got None")
    if config.entropy_coefficient > 0 and inputs.entropy is None:
        raise ValueError(f"entropy_coefficient = {config.entropy_coefficient} needs entropy, got None")
    expected = inputs.mask.shape
    tensors = ("logprobs", "old_logprobs", "rollout_logprobs", "advantages", "entropy", "ref_logprobs", "sequence_ids")
    for name in (*tensors, "sample_tokens"):
        tensor = getattr(inputs, name)
        if tensor is not None and (tensor.shape != expected or tensor.ndim != 2):
            raise ValueError(f"{name} must be [batch, seq] like mask {list(expected)}, got {list(tensor.shape)}")
