"""Metrics of the loss, in a form that adds up exactly over micro-batches and ranks.

A loss reports sums, counts and maxima (`measure`); `summarize` joins any number of them and divides once. `METRICS`
defines what comes out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from math import log
from typing import TYPE_CHECKING

from torch.nn.functional import logsigmoid

from tasks.training.objective.config import PER_SEQUENCE, ObjectiveConfig
from tasks.training.objective.ratios import bounded_exp

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.objective.surrogate import Clipped

METRICS: dict[str, str] = {
    "loss": "none; the value that is differentiated: the sum of the three below",
    "policy_loss": "none; the part of the loss that is the surrogate objective, negated",
    "kl_loss": "none; the part of the loss that is the KL penalty",
    "entropy_loss": "none; the part of the loss that is the entropy bonus, negated",
    "ratio": "ratio; mean of r",
    "ratio_max": "ratio; maximum of r",
    "clip_low": "share of tokens; those with A < 0 (`cispo`: any A) and r < 1 - clip_low",
    "clip_high": "share of tokens; those with A > 0 (`cispo`: any A) and r > 1 + clip_high",
    "probability": "probability; mean, over trained tokens, under the policy before the step (DAPO, figure 7)",
    "clip_high_probability_max": "probability; the largest among the tokens that `clip_high` counts (DAPO, figure 3a)",
    "clip_dual": "share of tokens; those with A < 0 and r > dual_clip; only where `dual_clip` is set",
    "importance_weight": "ratio; mean of w as applied, which is 0 for dropped tokens",
    "importance_weight_max": "ratio; maximum of w as applied",
    "is_oob_ratio": "share of tokens, or of sequences for corrections with bounds on sequences; those whose weight was "
    "truncated (`tis`, `sequence_truncate`) or that were dropped (the other kinds)",
    "off_policy": "share of sequences; those dropped by `off_policy_threshold`; only where that is set",
    "mismatch": "nats; mean of abs(d)",
    "mismatch_max": "nats; maximum of abs(d)",
    "token_mult_prob_error": "ratio; mean of exp(abs(d)), 1 where engine and learner agree (NeMo RL)",
    "gen_kl_error": "nats; mean of exp(d) - d - 1, the k3 estimate of KL(engine, learner) (NeMo RL)",
    "policy_kl_error": "nats; mean of exp(-d) + d - 1, the k3 estimate of KL(learner, engine) (NeMo RL)",
    "js_divergence_error": "nats; the Jensen-Shannon divergence of engine and learner (NeMo RL): mean of "
    "(k(p) + k(q)) / 2, where k(x) = x/m - log(x/m) - 1, p and q are the token's probabilities under learner and "
    "engine, and m is their mean",
    "kl": "nats; mean of the configured estimator of KL(policy, reference); only where beta > 0; with `in_reward`, of "
    "the policy before the first update",
    "num_tokens": "tokens; trained tokens of the batch",
    "num_sequences": "sequences; those of the batch with a trained token",
}
"""Definition of every metric of the loss, as "unit; meaning".

Means and maxima are over trained tokens. A is the advantage, w the correction's weight, r the importance ratio, and
`d = old_logprobs - rollout_logprobs` (learner less engine).
"""

TOTALS = frozenset({"loss", "policy_loss", "kl_loss", "entropy_loss", "num_tokens", "num_sequences"})
"""Metrics that are sums over micro-batches."""
MAXIMA = frozenset({"ratio_max", "importance_weight_max", "mismatch_max", "clip_high_probability_max"})
"""Metrics that are maxima over micro-batches; those in neither set are means."""
OOB_COUNT = "is_oob_count"
"""Divisor of `is_oob_ratio`: tokens or sequences; `summarize` removes it."""
OFF_POLICY = "off_policy"


@dataclass(frozen=True)
class Measured:
    """Detached per-token quantities of one loss, all `[batch, seq]`, from which `measure` makes the metrics."""

    probability: Tensor
    """Probability of the token under the policy before the first update."""
    log_mismatch: Tensor
    """`old_logprobs - rollout_logprobs`, nats."""
    ratio: Tensor
    """Importance ratio."""
    clipped: Clipped
    weights: Tensor
    """The correction's weights."""
    out_of_bounds: Tensor
    """bool, as in `Correction`."""
    off_policy: Tensor
    """bool, as in `Correction`."""
    kl: Tensor | None
    """Estimate of KL(policy || reference), nats; None where there is no such term in the loss."""
    mask: Tensor
    """bool, trained tokens."""
    sequence_share: Tensor
    """One over the number of trained tokens of the token's sequence; 0 outside the mask."""


def measure(tokens: Measured, config: ObjectiveConfig) -> dict[str, Tensor]:
    """Compute sums, counts and maxima of one micro-batch, each a 0-d tensor, under the names of `METRICS`."""
    mask, ratio, d = tokens.mask, tokens.ratio, tokens.log_mismatch

    def total(values: Tensor) -> Tensor:
        return values.where(mask, 0).sum()

    def largest(values: Tensor) -> Tensor:
        return values.where(mask, 0).amax()

    per_sequence = config.correction.kind in PER_SEQUENCE
    num_tokens, num_sequences = mask.sum(), tokens.sequence_share.sum().round()
    sums = {
        "ratio": total(ratio),
        "ratio_max": largest(ratio),
        "clip_low": total(tokens.clipped.low),
        "clip_high": total(tokens.clipped.high),
        "probability": total(tokens.probability),
        "clip_high_probability_max": largest(tokens.probability * tokens.clipped.high),
        "importance_weight": total(tokens.weights),
        "importance_weight_max": largest(tokens.weights),
        "is_oob_ratio": total(tokens.out_of_bounds * (tokens.sequence_share if per_sequence else 1)),
        OOB_COUNT: num_sequences if per_sequence else num_tokens,
        "mismatch": total(d.abs()),
        "mismatch_max": largest(d.abs()),
        "token_mult_prob_error": total(bounded_exp(d.abs())),
        "gen_kl_error": total(bounded_exp(d) - d - 1),
        "policy_kl_error": total(bounded_exp(-d) + d - 1),
        "js_divergence_error": total(_jensen_shannon(d)),
        "num_tokens": num_tokens,
        "num_sequences": num_sequences,
    }
    if config.dual_clip is not None:
        sums["clip_dual"] = total(tokens.clipped.dual)
    if config.correction.off_policy_threshold is not None:
        sums[OFF_POLICY] = total(tokens.off_policy * tokens.sequence_share)
    if tokens.kl is not None:
        sums["kl"] = total(tokens.kl)
    return sums


def _jensen_shannon(d: Tensor) -> Tensor:
    """`(k(p) + k(q)) / 2` from `d = log(p / q)`: p / m is `2 / (1 + exp(-d))`, and q / m is `2 / (1 + exp(d))`."""
    p, q = log(2) + logsigmoid(d), log(2) + logsigmoid(-d)
    return (bounded_exp(p) - p + bounded_exp(q) - q) / 2 - 1


def summarize(parts: Iterable[Mapping[str, Tensor | float]]) -> dict[str, float]:
    """Join the metrics of the micro-batches, of all ranks, of one global batch.

    Args:
        parts: `LossOutput.metrics` of every micro-batch; tensors or numbers, all with the same names.

    Returns:
        The metrics that `METRICS` defines. Means over no tokens are 0.

    Raises:
        ValueError: there are no parts.
    """
    rows = [{name: float(value) for name, value in part.items()} for part in parts]
    if not rows:
        raise ValueError("there are no metrics to summarize")
    totals = {name: (max if name in MAXIMA else sum)(row[name] for row in rows) for name in rows[0]}
    oob_count = totals.pop(OOB_COUNT)

    def finish(name: str, value: float) -> float:
        if name in TOTALS or name in MAXIMA:
            return value
        counts = {"is_oob_ratio": oob_count, OFF_POLICY: totals["num_sequences"]}
        return value / max(counts.get(name, totals["num_tokens"]), 1.0)

    return {name: finish(name, value) for name, value in totals.items()}
