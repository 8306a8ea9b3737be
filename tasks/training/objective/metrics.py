"""Computes metrics of the loss from sums and counts that add up exactly over micro-batches and ranks.

Each loss reports sums and counts (`measure`); `summarize` adds up any number of them and divides once. Sums are over
trained tokens. `LOSS_METRICS` contains the definitions, with `w` the correction's weight, `r` the importance ratio and
`d = old_logprobs - rollout_logprobs` (learner minus engine).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import log
from typing import TYPE_CHECKING

from tasks.training.objective.ratios import bounded_exp
from tasks.training.options.correction import PER_SEQUENCE
from tasks.training.options.objective import ObjectiveConfig
from tasks.training.runtime.metric import Metric

if TYPE_CHECKING:
    from torch import Tensor

    from tasks.training.objective.surrogate import Clipped

LOSS_METRICS = (
    Metric("loss", "", "value that is differentiated"),
    Metric("policy_loss", "", "its part of the policy"),
    Metric("kl_loss", "", "its part of the KL penalties, `kl.beta` and `dppo.kl_weight`"),
    Metric("entropy_loss", "", "its part of the entropy"),
    Metric("ratio", "", "mean of r; with `dppo`, r is pi / pi_rollout"),
    Metric("ratio_max", "", "maximum of r"),
    Metric(
        "clip_low",
        "share of tokens",
        "tokens with A < 0 (`cispo`: any A) and r < 1 - clip_low; with `dppo`, dropped ones with A < 0; this and the "
        "other metrics of clipping only with a built-in `surrogate`",
    ),
    Metric(
        "clip_high",
        "share of tokens",
        "tokens with A > 0 (`cispo`: any A) and r > 1 + clip_high; with `dppo`, dropped ones with A > 0",
    ),
    Metric(
        "probability",
        "",
        "mean probability of the trained tokens under the policy before the step (DAPO, figure 7)",
    ),
    Metric(
        "clip_high_probability_max",
        "",
        "the largest probability among tokens that `clip_high` counts (DAPO, figure 3a)",
    ),
    Metric("clip_dual", "share of tokens", "tokens with A < 0 and r > dual_clip; only if that is set"),
    Metric("importance_weight", "", "mean of w as applied, 0 for dropped tokens"),
    Metric("importance_weight_max", "", "maximum of w"),
    Metric(
        "is_oob_ratio",
        "share",
        "tokens truncated (`tis`) or dropped (`icepop`), or of sequences (the other corrections)",
    ),
    Metric("masked", "share of tokens", "tokens dropped by `correction.mask`; only if that is set"),
    Metric("off_policy", "share of sequences", "sequences dropped by `off_policy_threshold`; only if that is set"),
    Metric("mismatch", "nats", "mean of abs(d)"),
    Metric("mismatch_max", "nats", "maximum of abs(d)"),
    Metric("token_mult_prob_error", "", "mean of exp(abs(d)) (NeMo RL); 1 when engine and learner agree"),
    Metric("gen_kl_error", "nats", "mean of exp(d) - d - 1, the k3 estimate of KL(engine, learner) (NeMo RL)"),
    Metric("policy_kl_error", "nats", "mean of exp(-d) + d - 1, the same of KL(learner, engine) (NeMo RL)"),
    Metric(
        "js_divergence_error",
        "nats",
        "mean of (k(p) + k(q)) / 2, where k(x) = x/m - log(x/m) - 1, p and q are the token's probabilities "
        "under learner and engine, and m their mean: the Jensen-Shannon divergence (NeMo RL)",
    ),
    Metric(
        "kl",
        "nats",
        "mean of the configured estimator of KL(policy, reference); only if beta > 0; with `in_reward`, "
        "that of the policy before the first update",
    ),
    Metric("own/<name>", "", "mean over tokens of a value that the loss of your own (`surrogate.function`) returned"),
    Metric("num_tokens", "tokens", "trained tokens; recorded as `trained_tokens`"),
    Metric(
        "num_sequences",
        "sequences",
        "sequences that have any; the parts of an episode that was started again count as one",
    ),
)
"""Metrics of the loss of a step. A is the advantage; w, r and d are defined in the module's docstring."""

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
    """Compute sums, counts and maxima of one micro-batch, each a 0-d tensor, under the names of `LOSS_METRICS`."""
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
        The metrics that `LOSS_METRICS` defines. Means over no tokens are 0.

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
