"""Populations of prompts for two policies with known rates, correlations and gain.

A policy's chance to pass a prompt is Beta distributed with the mean `rate` and the variance
`correlation * rate * (1 - rate)`, which is Beta(rate * s, (1 - rate) * s) with s = 1 / correlation - 1. Its samples of
a prompt are independent given that chance, so that the number of passes is beta-binomial, and `correlation` is that
between two samples of a prompt.

The other policy has the same correlation and the mean rate + gain, or rate - gain if that is above 1: 0.98 loses 5
points. A prompt has the same rank in both policies' distributions, except for `redrawn`, the share of prompts whose
ranks are shuffled among each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import product

import numpy as np
from scipy import special, stats

from tasks.statistics.intervals import Estimate, estimate_rate, estimate_rate_gain
from tasks.statistics.pass_at_k import estimate_pass_at_k

SIZE = 20_000
"""Prompts of a population, at equally spaced ranks."""
PROMPTS, SAMPLES = (30, 100, 500), (1, 4, 16, 32)
RATES, CORRELATIONS, GAINS = (0.02, 0.5, 0.98), (0.3, 0.6, 0.8), (0.0, 0.05)

Statistic = Callable[[np.random.Generator, np.ndarray], np.ndarray]
"""Samples the chances of prompts, `[..., prompts]`, and returns the prompts' values of a metric."""


@dataclass(frozen=True)
class Cell:
    """One set of conditions. `redrawn` is described above."""

    prompts: int
    samples: int
    rate: float
    correlation: float
    gain: float
    redrawn: float = 0.0


@dataclass(frozen=True)
class Found:
    """Coverage, widths and p-values of the intervals of many draws of a cell.

    Attributes:
        truth: the metric of the first policy.
        rate, gain: share of the intervals that contain the population's value.
        rate_width, gain_width: mean width over that of the plain t interval.
        detected: share of the draws with a p-value below 0.05.
        disagree: share of the draws whose p-value is below 0.05 and whose interval contains 0, or neither.
    """

    truth: float
    rate: float
    gain: float
    rate_width: float
    gain_width: float
    detected: float
    disagree: float


def cells() -> Iterator[Cell]:
    """Yield all cells for which coverage is promised."""
    for conditions in product(PROMPTS, SAMPLES, RATES, CORRELATIONS, GAINS):
        yield Cell(*conditions)


def chances(cell: Cell, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Return the chance of each prompt of the population to pass under both policies."""
    other = cell.rate + cell.gain if cell.rate + cell.gain < 1 else cell.rate - cell.gain
    before, after = (_at_ranks(rate, cell.correlation) for rate in (cell.rate, other))
    moved = np.flatnonzero(generator.random(SIZE) < cell.redrawn)
    after[moved] = after[generator.permutation(moved)]
    return before, after


def _at_ranks(rate: float, correlation: float) -> np.ndarray:
    total = 1 / correlation - 1
    return special.betaincinv(rate * total, (1 - rate) * total, (np.arange(SIZE) + 0.5) / SIZE)


def share_of_samples(samples: int) -> Statistic:
    """The pass rate of a number of samples."""
    return lambda generator, chance: generator.binomial(samples, chance) / samples


def passes_at(k: int, samples: int) -> Statistic:
    """pass@k of a number of samples."""
    estimates = estimate_pass_at_k(np.full(samples + 1, samples), np.arange(samples + 1))[:, k - 1]
    return lambda generator, chance: estimates[generator.binomial(samples, chance)]


def majority_of(k: int, samples: int) -> Statistic:
    """majority@k of a number of samples, from blocks, if all wrong answers agree; a tie counts half."""

    def value(generator: np.random.Generator, chance: np.ndarray) -> np.ndarray:
        passed = generator.binomial(k, chance, (samples // k, *chance.shape))
        return np.mean(np.sign(2 * passed - k) / 2 + 0.5, axis=0)

    return value


def passes_truly(k: int, chance: np.ndarray) -> np.ndarray:
    """The true pass@k of prompts."""
    return 1 - (1 - chance) ** k


def majority_truly(k: int, chance: np.ndarray) -> np.ndarray:
    """The true majority@k of prompts, by the rules of `majority_of`."""
    chance = np.clip(chance, 1e-9, 1 - 1e-9)  # SciPy's density overflows for numbers that hardly differ from 0
    return stats.binom.sf(k // 2, k, chance) + (k % 2 == 0) * stats.binom.pmf(k / 2, k, chance) / 2


def examine(
    cell: Cell,
    draws: int,
    *,
    block: int = 1,
    sample: Statistic | None = None,
    truly: Callable[[np.ndarray], np.ndarray] = lambda chance: chance,
    seed: int = 0,
) -> Found:
    """Draw sets of prompts and samples, and compare their intervals with the truth and with the plain t interval.

    Args:
        cell: the conditions.
        draws: number of sets.
        block: samples that one observation of the metric needs.
        sample: the metric of a prompt's samples. If None, the pass rate.
        truly: the metric's true value of prompts, from their chances.
        seed: seed of the draws.
    """
    generator = np.random.default_rng(seed)
    populations = chances(cell, generator)
    chosen = generator.integers(0, SIZE, (draws, cell.prompts))
    metric = sample or share_of_samples(cell.samples)
    before, after = (metric(generator, population[chosen]) for population in populations)
    truths = [float(truly(population).mean()) for population in populations]
    rollouts = cell.prompts * (cell.samples // block)
    rates = [estimate_rate(values, rollouts) for values in before]
    gains = [estimate_rate_gain(*pair) for pair in zip(before, after, strict=True)]
    detected = np.array([gain.p_value < 0.05 for gain in gains])
    excluded = np.array([not _holds(gain, 0.0) for gain in gains])
    return Found(
        truth=truths[0],
        rate=float(np.mean([_holds(rate, truths[0]) for rate in rates])),
        gain=float(np.mean([_holds(gain, truths[1] - truths[0]) for gain in gains])),
        rate_width=_width(rates) / _plain_width(before),
        gain_width=_width(gains) / _plain_width(after - before),
        detected=float(detected.mean()),
        disagree=float(np.mean(detected != excluded)),
    )


def _holds(estimate: Estimate, truth: float) -> bool:
    return estimate.low <= truth <= estimate.high


def _width(estimates: list[Estimate]) -> float:
    return float(np.mean([estimate.high - estimate.low for estimate in estimates]))


def _plain_width(values: np.ndarray) -> float:
    """The mean width of the t intervals of draws, `[draws, prompts]`, infinitely small ones included."""
    prompts = values.shape[1]
    return float(2 * stats.t.ppf(0.975, prompts - 1) * np.mean(values.std(axis=1, ddof=1)) / np.sqrt(prompts))
