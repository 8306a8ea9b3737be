"""Estimates rates and lengths over prompts, their intervals, and the p-values of paired differences.

The prompt is the unit of observation. Samples of one prompt are correlated, so every metric is a mean over prompts of
per-prompt means, and its 95% interval treats prompts as clusters (Miller 2024, "Adding Error Bars to Evals",
arXiv:2411.00640).

Intervals:

- *Rates* (`pass_rate`, `mean_score`, `pass@k`, `truncated`): the Wilson score interval at the effective sample size
  `n_eff = p (1 - p) / var(p)` with a t quantile on `prompts - 1` degrees of freedom (Dean and Pagano 2015, J. Surv.
  Stat. Methodol. 3(4)), `n_eff` clipped to [prompts, rollouts]. For 0/1 scores both bounds are exact: the variance of
  a per-prompt mean lies between `p (1 - p) / samples` and `p (1 - p)`. At 0 and 1, the variance is estimated as 0; the
  lower bound applies and the interval does not collapse. For pass@k the upper bound counts disjoint blocks of k
  samples instead of rollouts: the estimate from all subsets varies no more than the mean over such blocks.
- *Gains of rates*: the t interval of per-prompt differences after adding two pseudo-prompts, one unchanged and one
  split evenly between +1 and -1 (Agresti and Min 2005, Stat. Med. 24, for paired proportions). It never collapses when
  all prompts agree, but is slightly wider than the plain interval. The gain itself is not adjusted.
- *Lengths and rewards* (`mean_tokens`, `rewards/<name>`): the plain t interval over prompts. One prompt has no
  interval: its bounds are NaN.

The p-value of a gain is two-sided, from flipping the signs of per-prompt differences. For differences of the same size
only the number of flips counts, which is binomial. The p-value is exact if few sums are possible, for example with one
sample of each prompt, when it is that of McNemar's exact test. Otherwise it is computed from 9,999 seeded flips of all
signs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy import stats

CONFIDENCE = 0.95
"""Confidence level of all intervals."""
FLIPS = 9_999
"""Number of sampled sign flips for a p-value if not all are enumerated."""
MOST_SUMS = 1_000_000
"""Maximum number of sums of flipped differences that are enumerated."""
DRAWN_AT_ONCE = 1 << 22
"""Maximum number of random numbers that are sampled at a time, 8 bytes each."""
DECIMALS = 12
"""Number of decimals used to compare the sizes of differences."""
FLIP_SEED = 0
"""Seed of the sign flips."""


@dataclass(frozen=True)
class Estimate:
    """A mean over `n` prompts with its 95% confidence interval."""

    value: float
    low: float
    high: float
    n: int


def rate_interval(means: np.ndarray, rollouts: int) -> Estimate:
    """Return the mean of per-prompt rates with its Wilson interval (see the module's docstring).

    With one prompt the variance over prompts is unknown: its interval is [0, 1].

    Args:
        means: mean score of each prompt, `[prompts]` in [0, 1].
        rollouts: total number of samples of all prompts.
    """
    n, value = len(means), _mean(means)
    if n == 1:
        return Estimate(value, 0.0, 1.0, n)
    spread = value * (1 - value)
    variance = float(np.var(means, ddof=1)) / n
    # No variance at 0 or 1 means a lack of information (few observations), elsewhere it means agreement (many).
    observations = (
        float(np.clip(spread / variance, n, rollouts)) if variance > 0 else float(n if spread == 0 else rollouts)
    )
    t = _t_quantile(n)
    shrink = 1 + t**2 / observations
    centre = (value + t**2 / (2 * observations)) / shrink
    half = t * np.sqrt(spread / observations + t**2 / (4 * observations**2)) / shrink
    return Estimate(value, float(min(value, max(0.0, centre - half))), float(max(value, min(1.0, centre + half))), n)


def rate_gain(differences: np.ndarray) -> Estimate:
    """Return the mean of per-prompt differences of rates, `[prompts]` in [-1, 1], with its Agresti-Min interval."""
    n = len(differences)
    if n == 1:
        return Estimate(_mean(differences), -1.0, 1.0, n)
    centre = float(np.sum(differences)) / (n + 2)
    variance = (float(np.sum(differences**2)) + 1) / (n + 2) - centre**2
    half = _t_quantile(n) * float(np.sqrt(variance / (n + 2)))
    return Estimate(_mean(differences), max(-1.0, centre - half), min(1.0, centre + half), n)


def length_interval(means: np.ndarray) -> Estimate:
    """Return the mean of per-prompt lengths or of their differences, `[prompts]` in tokens, with its t interval."""
    n, value = len(means), _mean(means)
    if n == 1:
        return Estimate(value, float("nan"), float("nan"), n)
    half = _t_quantile(n) * float(np.std(means, ddof=1)) / float(np.sqrt(n))
    return Estimate(value, value - half, value + half, n)


def sign_flip_p_value(differences: np.ndarray, seed: int = FLIP_SEED) -> float:
    """Return the two-sided p-value of the hypothesis that the differences, `[prompts]`, are symmetric about 0."""
    sizes, counts = np.unique(np.round(np.abs(differences[differences != 0]), DECIMALS), return_counts=True)
    observed = abs(float(np.sum(differences))) * (1 - 10.0**-DECIMALS) - 10.0**-DECIMALS
    if np.sum(np.log(counts + 1)) <= np.log(MOST_SUMS):
        sums, chances = _all_sums(sizes, counts)
        return min(1.0, float(np.sum(chances[np.abs(sums) >= observed])))
    generator = np.random.default_rng(seed)
    at_once = max(1, DRAWN_AT_ONCE // len(counts))
    extreme = 0
    for start in range(0, FLIPS, at_once):
        up = generator.binomial(counts, 0.5, (min(at_once, FLIPS - start), len(counts)))
        extreme += int(np.sum(np.abs((2 * up - counts) @ sizes) >= observed))
    return (1 + extreme) / (1 + FLIPS)


def _all_sums(sizes: np.ndarray, counts: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return all possible sums after sign flips of `counts` differences of each size, with their probabilities."""
    sums, chances = np.zeros(1), np.ones(1)
    for size, count in zip(sizes, counts, strict=True):
        up = np.arange(count + 1)
        sums = (sums[:, None] + size * (2 * up - count)).ravel()
        chances = (chances[:, None] * stats.binom.pmf(up, count, 0.5)).ravel()
    return sums, chances


def _mean(values: np.ndarray) -> float:
    return float(np.mean(values))


def _t_quantile(n: int) -> float:
    return float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1))
