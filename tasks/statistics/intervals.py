"""Estimates rates, lengths and their gains over prompts, with 95% intervals and the p-values that belong to them.

The prompt is the unit of observation. Samples of one prompt are correlated, so every metric is a mean over prompts of
per-prompt means, and its 95% interval treats prompts as clusters (Miller 2024, "Adding Error Bars to Evals",
arXiv:2411.00640).

All intervals of values in [0, 1] use one quantity, the *remaining share*: the variance over prompts of per-prompt means
as a share of the variance that one sample of each prompt would have. It is 1 if the samples of every prompt agree, and
1 / samples if they are independent. It is estimated from the data and a part of a prompt whose samples all agree
(`PRIOR`), so that data without any variance have the share 1: nothing was learned about the samples.

- *Rates* (`pass_rate`, `mean_score`, `pass@k`, `majority@k`, `truncated`, rewards in [0, 1]): the Wilson score interval
  at the effective sample size `prompts / share` with a t quantile on `prompts - 1` degrees of freedom (Dean and Pagano
  2015, J. Surv. Stat. Methodol. 3(4)). The share is clipped to [prompts / rollouts, 1], which for 0/1 scores are its
  exact bounds. For pass@k and majority@k, disjoint blocks of k samples are counted instead of rollouts: the estimate
  from all subsets varies no more than the mean over such blocks.
- *Gains of rates*: the t interval of per-prompt differences after adding two pseudo-prompts with differences of +1 and
  -1 (Bonett and Price 2012, J. Educ. Behav. Stat. 37(4), for pairs of 0/1). Their method has one sample of each prompt.
  With several, the squares of the two differences are the remaining share of the differences, and its square; with one
  sample the share is 1. The gain itself is not adjusted.
- *Lengths and other rewards* (`mean_tokens`, `rewards/<name>`): the plain t interval over prompts. One prompt has no
  interval: its bounds are NaN.

The p-value of a gain is two-sided and is from the same statistic as its interval, so that it is below 0.05 exactly if
the 95% interval excludes 0. `python -m tests.bench.intervals cells` shows coverage, width and the rate of false
positives by number of prompts, samples, rate and correlation.

No interval of this width can cover a change that no prompt has shown: if a few prompts in a hundred change from never
to always passing, and all others have samples that disagree, small sets of prompts often contain none of the former.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from scipy.special import stdtr, stdtrit

CONFIDENCE = 0.95
"""Confidence level of all intervals."""
POWER = 0.8
"""Probability that the smallest detectable gain is detected."""
PRIOR = 0.15
"""Weight of the agreeing prompt in the remaining share, in prompts, if no sample disagrees. Each expected disagreement
makes it smaller. Chosen with `tests/bench/intervals.py`: at 0.1 some coverages are below 0.93, and at 0.3 the interval
of a gain at a rate of 0.5 can be more than 1.2 times as wide as plain t."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` prompts, or a gain, with its 95% confidence interval.

    Attributes:
        value: the mean or the gain.
        low, high: bounds of the interval.
        n: number of prompts.
        p_value: two-sided p-value of a gain. None for a mean, or if one prompt has no interval.
        detectable: smallest gain that the same prompts and samples detect with the probability `POWER`, or None as
            above.
    """

    value: float
    low: float
    high: float
    n: int
    p_value: float | None = None
    detectable: float | None = None


def estimate_rate(means: np.ndarray, rollouts: int, weights: np.ndarray | None = None) -> Estimate:
    """Return the mean of per-prompt rates with its Wilson interval (see the module's docstring).

    With one prompt the variance over prompts is unknown: its interval is [0, 1].

    Args:
        means: mean score of each prompt, `[prompts]` in [0, 1].
        rollouts: total number of samples of all prompts, or of blocks of samples.
        weights: weights of the prompts in the mean, `[prompts]`, positive. If None, they are equal. Weighted means are
            linearised (Woodruff 1971, J. Am. Stat. Assoc. 66).
    """
    n, scale = len(means), _normalize_weights(means, weights)
    value = _compute_mean(scale * means)
    if n == 1:
        return Estimate(value, 0.0, 1.0, n)
    spread, squares = max(0.0, value * (1 - value)), float(np.sum(scale**2))
    seen = float(np.sum((scale * (means - value)) ** 2)) * n / (n - 1)
    share = float(np.clip(_compute_remaining_share(seen, spread * squares), min(1.0, n / rollouts), 1.0))
    observations = n**2 / squares / share
    t = compute_t_quantile(n - 1)
    shrink = 1 + t**2 / observations
    centre = (value + t**2 / (2 * observations)) / shrink
    half = t * np.sqrt(spread / observations + t**2 / (4 * observations**2)) / shrink
    return Estimate(value, float(min(value, max(0.0, centre - half))), float(max(value, min(1.0, centre + half))), n)


def estimate_score(means: np.ndarray, rollouts: int) -> Estimate:
    """Return the mean of per-prompt scores, `[prompts]`, with the interval of rates if all are in [0, 1], else t's."""
    return estimate_rate(means, rollouts) if has_only_rates(means) else estimate_mean(means)


def has_only_rates(values: np.ndarray) -> bool:
    """Return whether all values are in [0, 1], as verdicts and shares are."""
    return bool(np.all((values >= 0) & (values <= 1)))


def estimate_rate_gain(before: np.ndarray, after: np.ndarray, weights: np.ndarray | None = None) -> Estimate:
    """Return the mean gain of per-prompt rates with its Bonett-Price interval (see the module's docstring).

    One prompt is no evidence: its interval is [-1, 1].

    Args:
        before, after: mean score of each prompt, `[prompts]` in [0, 1], of the same prompts in the same order.
        weights: as in `estimate_rate`.
    """
    differences, scale = after - before, _normalize_weights(before, weights)
    n, value = len(differences), _compute_mean(scale * differences)
    if n == 1:
        return Estimate(value, -1.0, 1.0, n, p_value=1.0)
    seen = float(np.sum((value + scale * (differences - value)) ** 2))
    # The chance that one sample of each policy differs: one passes and the other does not.
    disagreement = float(np.sum(scale**2 * (before * (1 - after) + after * (1 - before))))
    centre, error = n * value / (n + 2), _compute_gain_error(seen, disagreement, n, n * value / (n + 2))
    gain = _make_t_gain(centre, error, n - 1, n)
    return replace(gain, value=value, detectable=min(1.0, compute_detectable_gain(error, n - 1) * (n + 2) / n))


def plan_gain(prompts: int, samples: int, rate: float, correlation: float, shared: float) -> float:
    """Return the smallest gain of a rate that a comparison is expected to detect with the probability `POWER`.

    Per-prompt rates have the variance `correlation * rate * (1 - rate)`, so `correlation` is that between samples of a
    prompt, and `shared` is the correlation of these rates between the two policies. The difference of the means over
    samples then has the variance `2 rate (1 - rate) ((1 - correlation) / samples + correlation (1 - shared))`.

    Args:
        prompts: number of prompts, at least 2.
        samples: number of samples of each.
        rate: the mean rate of the policies, in (0, 1).
        correlation, shared: see above, in [0, 1].
    """
    single = 2 * prompts * rate * (1 - rate)
    seen = single * ((1 - correlation) / samples + correlation * (1 - shared))
    error = _compute_gain_error(seen, single * (1 - correlation * shared), prompts, 0.0)
    return min(1.0, compute_detectable_gain(error, prompts - 1) * (prompts + 2) / prompts)


def estimate_mean(means: np.ndarray) -> Estimate:
    """Return the mean of per-prompt lengths or rewards, `[prompts]`, with its t interval."""
    n, value = len(means), _compute_mean(means)
    if n == 1:
        return Estimate(value, float("nan"), float("nan"), n)
    half = compute_t_quantile(n - 1) * _compute_standard_error(means)
    return Estimate(value, value - half, value + half, n)


def estimate_mean_gain(before: np.ndarray, after: np.ndarray) -> Estimate:
    """Return the mean gain of per-prompt lengths or rewards, `[prompts]` each, with its t interval."""
    interval = estimate_mean(after - before)
    if interval.n == 1:
        return interval
    return _make_t_gain(
        interval.value, _compute_standard_error(after - before), interval.n - 1, interval.n, largest=np.inf
    )


def estimate_run_gain(before: np.ndarray, after: np.ndarray) -> Estimate | None:
    """Return the mean gain of a rate over training runs, with Welch's t interval, or None if it cannot be estimated.

    It is about other runs of the same two recipes on the same prompts. `estimate_rate_gain` is about other prompts for
    the same policies (Welch 1947, Biometrika 34; Agarwal et al. 2021, arXiv:2108.13264, on few runs).

    Args:
        before, after: rate of each run, `[runs]` each, of two recipes. With one run of either, or if the runs of both
            are equal, nothing is known about other runs.
    """
    if min(len(before), len(after)) < 2:
        return None
    parts = np.array([np.var(rates, ddof=1) / len(rates) for rates in (before, after)])
    if parts.sum() == 0:
        return None
    degrees = parts.sum() ** 2 / np.sum(parts**2 / [len(before) - 1, len(after) - 1])
    value, half = (
        _compute_mean(after) - _compute_mean(before),
        compute_t_quantile(degrees) * float(np.sqrt(parts.sum())),
    )
    return Estimate(value, max(-1.0, value - half), min(1.0, value + half), len(before) + len(after))


def estimate_jackknife_gain(value: float, error: float, groups: int, n: int) -> Estimate:
    """Return a gain of rates with its t interval, from a standard error over `groups` groups of prompts."""
    return _make_t_gain(value, error, groups - 1, n)


def estimate_mean_of_rates(estimates: list[Estimate]) -> Estimate:
    """Return the plain mean of independent rates, and the interval that their intervals imply.

    The distances of the bounds add in quadrature (MOVER: Zou and Donner 2008, Stat. Med. 27), so that the bounds stay
    in [0, 1].
    """
    count, value = len(estimates), _compute_mean(np.array([each.value for each in estimates]))
    below = np.sqrt(sum((each.value - each.low) ** 2 for each in estimates)) / count
    above = np.sqrt(sum((each.high - each.value) ** 2 for each in estimates)) / count
    return Estimate(value, float(value - below), float(value + above), sum(each.n for each in estimates))


def compute_detectable_gain(error: float, degrees: int) -> float:
    """Return the gain that is detected with the probability `POWER`, from the standard error of its estimate.

    This is the minimum detectable effect of Bloom 1995, Evaluation Review 19(5).
    """
    return (compute_t_quantile(degrees) + float(stdtrit(degrees, POWER))) * error


def compute_t_quantile(degrees: float) -> float:
    """Return the half width of an interval in standard errors: a quantile of Student's t."""
    return float(stdtrit(degrees, (1 + CONFIDENCE) / 2))


def _make_t_gain(value: float, error: float, degrees: int, n: int, largest: float = 1.0) -> Estimate:
    """Return a gain over `n` prompts with its t interval, which ends at `largest` in both directions."""
    half = compute_t_quantile(degrees) * error
    return Estimate(
        value,
        max(-largest, value - half),
        min(largest, value + half),
        n,
        p_value=_compute_p_value(value, error, degrees),
        detectable=min(largest, compute_detectable_gain(error, degrees)),
    )


def _compute_remaining_share(seen: float, single: float) -> float:
    """Return the variance that is seen, as a share of that of single samples, both summed over prompts."""
    agreeing = PRIOR / (1 + single)
    return (seen + agreeing) / (single + agreeing)


def _compute_gain_error(seen: float, disagreement: float, n: int, centre: float) -> float:
    """Return the standard error of a gain's centre, from the sums over `n` prompts of squares and disagreements."""
    share = _compute_remaining_share(seen, disagreement)
    squares = seen + share + share**2
    return float(np.sqrt((squares / (n + 2) - centre**2) / (n + 2)))


def _normalize_weights(values: np.ndarray, weights: np.ndarray | None) -> np.ndarray:
    """Return the weights with a mean of 1."""
    return np.ones(len(values)) if weights is None else weights / np.mean(weights)


def _compute_p_value(value: float, error: float, degrees: int) -> float:
    if error == 0:
        return 1.0 if value == 0 else 0.0
    return 2 * float(stdtr(degrees, -abs(value) / error))


def _compute_standard_error(values: np.ndarray) -> float:
    return float(np.std(values, ddof=1)) / float(np.sqrt(len(values)))


def _compute_mean(values: np.ndarray) -> float:
    return float(np.mean(values))
