"""Estimates AlpacaEval 2's length-controlled win rate.

This is the rate at which a judge would prefer a model's answers to a baseline's if both had the same length.

The definition is from Dubois et al. (2024, "Length-Controlled AlpacaEval: A Simple Way to Debias Automatic
Evaluators", arXiv:2404.04475), with the settings of the authors' program (alpaca_eval, `length_controlled_v1`):

- The preference for the model on instruction x, in [0, 1], is regressed by `logistic(theta + phi tanh(d / s) + psi g)`,
  where `d` is the difference of the answers' lengths, `s` its standard deviation over instructions, and `g` the
  difficulty of x, which the authors estimated once over the models of their leaderboard. There is no intercept in
  addition to `theta`, the term of the model.
- The fit minimises `C * sum(cross-entropy) + |theta| + |phi| + |psi|`. `C` is the one of 10 values from 1e-4 to 1e4
  with the lowest cross-entropy in 5-fold cross-validation, and the smallest if several have the same.
- Comparisons of the baseline's answers with the answers that it gives when prompted to be verbose, and to be concise,
  are further rows of the fit, without `theta` and with weight 0.1. They keep `phi` near the judge's length preference,
  so that a model cannot change it by cutting its worse answers short.
- The rate is the mean of `logistic(theta + psi g)` over the instructions.

The difficulties and the comparisons of the baseline with itself are data of the authors, which are arguments here.
The following may differ from the program: rows are assigned to folds round-robin, starting with the comparisons of the
baseline with itself, and a Newton method solves the penalised fit instead of liblinear, which has a larger tolerance.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import expit, xlogy

from tasks.failures import MistakeError

STRENGTHS = np.logspace(-4, 4, 10)
"""Values of C, the inverse strength of the penalty, for cross-validation."""
FOLDS = 5
"""Number of cross-validation folds."""
BASELINE_WEIGHT = 0.1
"""Weight of a comparison of the baseline with itself; a comparison of the model has weight 1. It is the authors' 0.2,
divided over two sets."""
FLOOR = 1e-15
"""Minimum probability in the cross-entropy of cross-validation, also used as the curvature if there is none."""
TOLERANCE = 1e-10
"""Gradient of the penalised loss per unit of weight at which a fit stops, and change of a coefficient at which sweeps
stop."""
NEWTON_STEPS = 200
"""Maximum number of steps of a fit. About ten are usual, and one per unit of a coefficient if a model always wins."""
SWEEPS = 1_000
"""Maximum number of sweeps over the coefficients to minimise a second-order approximation."""
HALVINGS = 30
"""Maximum number of halvings of a step that does not decrease the loss."""


@dataclass(frozen=True)
class Preferences:
    """A judge's comparisons of a model with a baseline, one for each instruction.

    Attributes:
        preferences: preference for the model's answer, `[n]` in [0, 1]: 1 if it wins, 0.5 for a draw, or a probability;
            NaN if the judge gave none.
        differences: length of the baseline's answer minus the length of the model's, `[n]`, in characters. For the
            baseline with itself it is already divided by its standard deviation.
        difficulties: difficulty of the instruction, `[n]`.
    """

    preferences: np.ndarray
    differences: np.ndarray
    difficulties: np.ndarray

    def __post_init__(self) -> None:
        """Check that the arrays have the same length, and that their values are in the ranges above."""
        columns = (self.preferences, self.differences, self.difficulties)
        if len({np.shape(column) for column in columns}) != 1 or np.ndim(self.preferences) != 1:
            raise ValueError(
                f"expected three columns of one length, got shapes {[np.shape(column) for column in columns]}"
            )
        given = self.preferences[~np.isnan(self.preferences)]
        if np.any((given < 0) | (given > 1)):
            raise ValueError("preferences must lie in [0, 1]")
        if not (np.isfinite(self.differences).all() and np.isfinite(self.difficulties).all()):
            raise ValueError("differences of length and difficulties must be finite")


class LengthControlled(NamedTuple):
    """The length-controlled win rate of a model in [0, 1], and the coefficients of the regression.

    Attributes:
        rate: the win rate at equal lengths.
        model: the term of the model, theta.
        length: the coefficient of the length difference, phi.
        difficulty: the coefficient of the difficulty, psi.
        strength: the C selected by cross-validation.
    """

    rate: float
    model: float
    length: float
    difficulty: float
    strength: float


def estimate_length_controlled(comparisons: Preferences, baseline: Preferences | None = None) -> LengthControlled:
    """Return the length-controlled win rate of a model against a baseline (see the module's docstring).

    Args:
        comparisons: comparisons of the model with the baseline.
        baseline: comparisons of the baseline's verbose and concise answers with its normal ones. If None, only the
            penalty regularises the length coefficient, and a model may raise its rate by cutting its worse answers
            short.

    Raises:
        MistakeError: there are fewer comparisons with a preference than folds.
    """
    own = _build_features(_normalize(comparisons.differences), comparisons.difficulties, 1.0)
    rows = _Rows(own, comparisons.preferences, np.ones(len(own)))
    if baseline is not None:
        held = _build_features(np.tanh(baseline.differences), baseline.difficulties, 0.0)
        rows = _Rows(held, baseline.preferences, np.full(len(held), BASELINE_WEIGHT)).append(rows)
    rows = rows.select(~np.isnan(rows.preferences))
    if np.sum(~np.isnan(comparisons.preferences)) < FOLDS:
        raise MistakeError(f"a length-controlled win rate needs {FOLDS} comparisons or more with a preference")
    strength = _choose_strength(rows)
    length, difficulty, model = (float(value) for value in _fit(rows, strength))
    rate = float(np.mean(expit(model + difficulty * comparisons.difficulties)))
    return LengthControlled(rate, model, length, difficulty, strength)


class _Rows(NamedTuple):
    """Rows of the regression: features `[n, 3]` (length, difficulty, model), preferences `[n]` and weights `[n]`."""

    features: np.ndarray
    preferences: np.ndarray
    weights: np.ndarray

    def select(self, chosen: np.ndarray) -> _Rows:
        """Return the rows at which `chosen`, `[n]`, is true."""
        return _Rows(*(column[chosen] for column in self))

    def scores(self, coefficients: np.ndarray) -> np.ndarray:
        """Return the logits of the rows, `[n]`, under the coefficients, `[3]`."""
        # Avoids BLAS, whose threads cost far more than a product of three columns if the machine is busy.
        return np.einsum("ij,j->i", self.features, coefficients)

    def append(self, others: _Rows) -> _Rows:
        """Concatenate these rows and the others."""
        return _Rows(*(np.concatenate(pair) for pair in zip(self, others, strict=True)))


def _normalize(differences: np.ndarray) -> np.ndarray:
    """Return tanh of the differences divided by their standard deviation (with n - 1), or 0 if all are equal."""
    deviation = np.std(differences, ddof=1) if len(differences) > 1 else 0.0
    return np.tanh(differences / deviation) if deviation > 0 else np.zeros(len(differences))


def _build_features(lengths: np.ndarray, difficulties: np.ndarray, model: float) -> np.ndarray:
    return np.column_stack([lengths, difficulties, np.full(len(lengths), model)])


def _choose_strength(rows: _Rows) -> float:
    """Return the C whose fits have the lowest cross-entropy on the held-out folds."""
    fold = np.arange(len(rows.preferences)) % FOLDS
    parts = [(rows.select(fold != left_out), rows.select(fold == left_out)) for left_out in range(FOLDS)]
    losses = [sum(_compute_cross_entropy(unseen, _fit(seen, c)) for seen, unseen in parts) for c in STRENGTHS]
    return float(STRENGTHS[int(np.argmin(losses))])


def _compute_cross_entropy(rows: _Rows, coefficients: np.ndarray) -> float:
    """Return the mean weighted cross-entropy of rows under the coefficients."""
    predicted = np.clip(expit(rows.scores(coefficients)), FLOOR, 1 - FLOOR)
    losses = xlogy(rows.preferences, predicted) + xlogy(1 - rows.preferences, 1 - predicted)
    return -float(np.mean(rows.weights * losses))


def _fit(rows: _Rows, strength: float) -> np.ndarray:
    """Return the coefficients, `[3]`, that minimise `strength` times the cross-entropy of the rows plus the penalty.

    A Newton method is used whose steps minimise the second-order approximation plus the penalty (Lee, Sun and Saunders
    2014, SIAM J. Optim. 24(3)). Everything is divided by `strength` and the rows' weight, which does not change the
    minimum.
    """
    total = float(np.sum(rows.weights))
    penalty, at = 1 / (strength * total), np.zeros(rows.features.shape[1])
    for _ in range(NEWTON_STEPS):
        chances = expit(rows.scores(at))
        slope = np.einsum("ij,i->j", rows.features, rows.weights * (chances - rows.preferences)) / total
        if np.all(np.abs(_compute_excess(slope, at, penalty)) <= TOLERANCE):
            break
        spread = rows.weights * chances * (1 - chances) / total
        curvature = np.einsum("ij,ik,i->jk", rows.features, rows.features, spread)
        step = _find_quadratic_minimum(at, slope, curvature, penalty) - at
        scale = _find_step_scale(rows, at, step, penalty)
        if scale == 0:  # no decrease beyond rounding errors
            break
        at = at + scale * step
    return at


def _compute_excess(slope: np.ndarray, at: np.ndarray, penalty: float) -> np.ndarray:
    """Return the gradient of the penalised loss for each coefficient; 0 if the penalty keeps a coefficient at 0."""
    held = np.sign(slope) * np.maximum(np.abs(slope) - penalty, 0)
    return np.where(at == 0, held, slope + penalty * np.sign(at))


def _find_quadratic_minimum(at: np.ndarray, slope: np.ndarray, curvature: np.ndarray, penalty: float) -> np.ndarray:
    """Return the minimum of the second-order approximation at `at` plus the penalty, by coordinate descent."""
    best = at.copy()
    for _ in range(SWEEPS):
        before = best.copy()
        for j in range(len(best)):
            steepness = curvature[j, j] + FLOOR  # the curvature of a feature that is always 0 is 0
            centre = best[j] - (slope[j] + float(np.sum(curvature[j] * (best - at)))) / steepness
            best[j] = np.sign(centre) * max(abs(centre) - penalty / steepness, 0.0)
        if np.all(np.abs(best - before) <= TOLERANCE):
            break
    return best


def _find_step_scale(rows: _Rows, at: np.ndarray, step: np.ndarray, penalty: float) -> float:
    """Return the largest of 1, 1/2, 1/4, ... by which a step decreases the penalised loss, or 0 if none does."""

    def compute_loss(coefficients: np.ndarray) -> float:
        scores = rows.scores(coefficients)
        losses = rows.weights * (np.logaddexp(0, scores) - rows.preferences * scores)
        return float(np.sum(losses) / np.sum(rows.weights) + penalty * np.sum(np.abs(coefficients)))

    start = compute_loss(at)
    return next((scale for scale in 0.5 ** np.arange(HALVINGS) if compute_loss(at + scale * step) < start), 0.0)
