"""Computes metrics of the loss from sums and counts that add up exactly over micro-batches and ranks.

Each loss reports sums and counts (`measure`); `summarize` adds up any number of them and divides once. Sums are over
trained tokens. `inputs/metrics.yaml` contains the definitions, with `w` the correction's weight, `r` the importance
ratio and `d = old_logprobs - rollout_logprobs` (learner minus engine).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

from tasks.objective.ratios import bounded_exp
from tasks.recipe.correction import PER_SEQUENCE
from tasks.recipe.objective import ObjectiveConfig

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.objective.surrogate import Clipped

TOTALS = frozenset({"loss", "policy_loss", "kl_loss", "entropy_loss", "num_tokens", "num_sequences"})
"""Metrics that are sums over micro-batches."""
MAXIMA = frozenset({"ratio_max", "importance_weight_max", "mismatch_max", "clip_high_probability_max"})
"""Metrics that are maxima over micro-batches; metrics in neither set are means."""
OOB_COUNT = "is_oob_count"
"""Divisor of `is_oob_ratio`: tokens or sequences; `summarize` removes it."""
OFF_POLICY = "off_policy"


@dataclass(frozen=True)
class Measured:
    """Detached per-token quantities of one loss, all `[batch, seq]`, from which `measure` computes the metrics."""

    probability: Tensor
    """Probability of the token under the policy before the first update."""
    log_mismatch: Tensor
    """`old_logprobs - rollout_logprobs`, nats."""
    ratio: Tensor
    """Importance ratio."""
    clipped: Clipped | None
    """Tokens that a bound of the surrogate clips, or None for a loss of the user's."""
    weights: Tensor
    """The correction's weights."""
    out_of_bounds: Tensor
    """bool, as in `Correction`."""
    off_policy: Tensor
    """bool, as in `Correction`."""
    masked: Tensor
    """bool, as in `Correction`."""
    kl: Tensor | None
    """Estimate of KL(policy || reference), nats, or None if the loss has no such term."""
    mask: Tensor
    """bool, trained tokens."""
    sample_share: Tensor
    """One over the number of trained tokens of the token's sample; 0 outside the mask."""
    own: Mapping[str, Tensor] = field(default_factory=dict)
    """Values that a loss of the user's returned, by name."""


def measure(tokens: Measured, config: ObjectiveConfig) -> dict[str, Tensor]:
    """Compute sums, counts and maxima of one micro-batch, each a 0-d tensor, under the metrics' names."""
    mask, ratio, d = tokens.mask, tokens.ratio, tokens.log_mismatch

    def total(values: Tensor) -> Tensor:
        return values.where(mask, 0).sum()

    def largest(values: Tensor) -> Tensor:
        return values.where(mask, 0).amax()

    per_sequence = config.correction.kind in PER_SEQUENCE
    num_tokens, num_sequences = mask.sum(), tokens.sample_share.sum()
    sums = {
        "ratio": total(ratio),
        "ratio_max": largest(ratio),
        "probability": total(tokens.probability),
        "importance_weight": total(tokens.weights),
        "importance_weight_max": largest(tokens.weights),
        "is_oob_ratio": total(tokens.out_of_bounds * (tokens.sample_share if per_sequence else 1)),
        OOB_COUNT: num_sequences if per_sequence else num_tokens,
        "mismatch": total(d.abs()),
        "mismatch_max": largest(d.abs()),
        "token_mult_prob_error": total(bounded_exp(d.abs())),
        "gen_kl_error": total(bounded_exp(d) - d - 1),
        "policy_kl_error": total(bounded_exp(-d) + d - 1),
        "js_divergence_error": total(_compute_jensen_shannon(d)),
        "num_tokens": num_tokens,
        "num_sequences": num_sequences,
    }
    if tokens.clipped is not None:
        sums["clip_low"] = total(tokens.clipped.low)
        sums["clip_high"] = total(tokens.clipped.high)
        sums["clip_high_probability_max"] = largest(tokens.probability * tokens.clipped.high)
        if config.dual_clip is not None:
            sums["clip_dual"] = total(tokens.clipped.dual)
    sums |= {f"own/{name}": total(values) for name, values in tokens.own.items()}
    if config.correction.off_policy_threshold is not None:
        sums[OFF_POLICY] = total(tokens.off_policy * tokens.sample_share)
    if config.correction.mask is not None:
        sums["masked"] = total(tokens.masked)
    if tokens.kl is not None:
        sums["kl"] = total(tokens.kl)
    return sums


def _compute_jensen_shannon(d: Tensor) -> Tensor:
    """`(k(p) + k(q)) / 2` from `d = log(p / q)`: p / m is `2 / (1 + exp(-d))`, and q / m is `2 / (1 + exp(d))`."""
    from torch.nn.functional import logsigmoid

    p, q = log(2) + logsigmoid(d), log(2) + logsigmoid(-d)
    return (bounded_exp(p) - p + bounded_exp(q) - q) / 2 - 1


def summarize(parts: Iterable[Mapping[str, Tensor | float]]) -> dict[str, float]:
    """Combine the metrics of all micro-batches, on all ranks, of one global batch.

    Args:
        parts: `LossOutput.metrics` of every micro-batch; tensors or numbers, all with the same names.

    Returns:
        The metrics of the loss. Means over no tokens are 0.

    Raises:
        ValueError: there are no parts.
    """
    rows = [{name: float(value) for name, value in part.items()} for part in parts]
    if not rows:
        raise ValueError("there are no metrics to summarize")
    totals = {name: (max if name in MAXIMA else sum)(row[name] for row in rows) for name in rows[0]}
    # The count of samples is a sum of shares, since a micro-batch may contain only a part of a sample.
    totals |= {name: float(round(totals[name])) for name in ("num_sequences", OOB_COUNT)}
    oob_count = totals.pop(OOB_COUNT)

    def finish(name: str, value: float) -> float:
        if name in TOTALS or name in MAXIMA:
            return value
        counts = {"is_oob_ratio": oob_count, OFF_POLICY: totals["num_sequences"]}
        return value / max(counts.get(name, totals["num_tokens"]), 1.0)

    return {name: finish(name, value) for name, value in totals.items()}
