"""The length-controlled win rate: identities, a regression by hand, and judges whose taste is known."""

import numpy as np
import pytest
from scipy.special import expit, logit

from tasks.evaluation.length_controlled import Preferences, estimate_length_controlled


def comparisons(preferences, differences, difficulties=None):
    preferences = np.asarray(preferences, dtype=float)
    difficulties = np.zeros(len(preferences)) if difficulties is None else np.asarray(difficulties, dtype=float)
    return Preferences(preferences, np.asarray(differences, dtype=float), difficulties)


def swapped(given):
    return Preferences(1 - given.preferences, -given.differences, given.difficulties)


def drawn(seed, n=150, theta=0.4, phi=-1.5, psi=0.8, mean=-200.0):
    """Wins drawn from the model of the regression, the model's answers longer by `-mean` characters on average."""
    generator = np.random.default_rng(seed)
    differences, difficulties = generator.normal(mean, 400, n).round(), generator.normal(0, 1, n)
    scores = theta + phi * np.tanh(differences / differences.std(ddof=1)) + psi * difficulties
    return comparisons(generator.random(n) < expit(scores), differences, difficulties)


def test_a_regression_worked_by_hand():
    # Two kinds of instructions, one the other's opposite in length: of the longer answers 80% win, of the shorter 50%.
    # The logits are theta + t = log 4 and theta - t = 0, so that theta = log 2, and the rate 2 / (1 + 2).
    found = estimate_length_controlled(comparisons([0.8, 0.5] * 20, [-300, 300] * 20))
    assert found.rate == pytest.approx(2 / 3, abs=1e-4)
    assert found.model == pytest.approx(np.log(2), abs=1e-3)
    deviation = np.std([-1.0, 1.0] * 20, ddof=1)
    assert found.length == pytest.approx(-np.log(2) / np.tanh(1 / deviation), abs=1e-3)
    assert found.difficulty == 0


def test_difficulties_enter_the_rate():
    # Preferences of 90% and 30% at the difficulties 1 and -1, whatever the length: theta and psi solve both.
    found = estimate_length_controlled(comparisons([0.9, 0.9, 0.3, 0.3] * 10, [5, -5] * 20, [1, 1, -1, -1] * 10))
    assert found.model == pytest.approx((logit(0.9) + logit(0.3)) / 2, abs=1e-3)
    assert found.difficulty == pytest.approx((logit(0.9) - logit(0.3)) / 2, abs=1e-3)
    assert found.length == pytest.approx(0, abs=1e-6)
    assert found.rate == pytest.approx((0.9 + 0.3) / 2, abs=1e-4)


@pytest.mark.parametrize("seed", range(3))
def test_at_equal_lengths_it_is_the_win_rate(seed):
    # At the minimum the slope along the model's term is at most the penalty: |sum(p - y)| <= 1 / C.
    given = drawn(seed)
    found = estimate_length_controlled(comparisons(given.preferences, np.zeros(150), given.difficulties))
    tolerance = 1 / (found.strength * 150)
    assert tolerance < 0.05
    assert found.rate == pytest.approx(given.preferences.mean(), abs=tolerance + 1e-6)
    assert found.length == 0


@pytest.mark.parametrize("seed", range(3))
def test_the_rates_of_two_models_against_each_other_sum_to_one(seed):
    given = drawn(seed)
    forth, back = estimate_length_controlled(given), estimate_length_controlled(swapped(given))
    assert forth.rate + back.rate == pytest.approx(1, abs=1e-5)
    assert forth.strength == back.strength
    assert back[1:4] == pytest.approx((-forth.model, forth.length, -forth.difficulty), abs=1e-4)


@pytest.mark.parametrize("psi", [0.0, 0.8])
def test_no_other_coefficients_have_a_smaller_penalised_loss(psi):
    given = drawn(9, psi=psi)
    found = estimate_length_controlled(given)
    lengths = np.tanh(given.differences / given.differences.std(ddof=1))

    def loss(model, length, difficulty):
        scores = model + length * lengths + difficulty * given.difficulties
        cross_entropy = np.sum(np.logaddexp(0, scores) - given.preferences * scores)
        return found.strength * cross_entropy + abs(model) + abs(length) + abs(difficulty)

    least = loss(*found[1:4])
    generator = np.random.default_rng(10)
    for size in (1e-4, 1e-2, 1):
        others = found[1:4] + size * generator.normal(size=(300, 3))
        assert all(loss(*other) >= least for other in others)
    assert loss(found.model, found.length, 0.0) >= least


def test_a_model_that_wins_only_by_length_has_a_rate_near_one_half():
    given = drawn(5, n=600, theta=0, phi=-3, psi=0, mean=-500)
    assert given.preferences.mean() > 0.75
    assert estimate_length_controlled(given).rate == pytest.approx(0.5, abs=0.1)


def test_a_model_that_is_as_good_and_terse_has_a_rate_above_its_win_rate():
    given = drawn(6, n=600, theta=0, phi=-3, psi=0, mean=500)
    assert given.preferences.mean() < 0.25
    assert estimate_length_controlled(given).rate == pytest.approx(0.5, abs=0.1)


def test_lengths_count_in_units_of_their_spread():
    given = drawn(7)
    tenfold = comparisons(given.preferences, 10 * given.differences, given.difficulties)
    assert estimate_length_controlled(tenfold) == estimate_length_controlled(given)


def test_the_baselines_own_answers_hold_the_taste_for_length():
    # The model's worse answers are cut short, so that its preferences look like a strong taste for length.
    n = 200
    generator = np.random.default_rng(8)
    worse = generator.random(n) < 0.5
    cut = comparisons(np.where(worse, 0.05, 0.6), np.where(worse, 900.0, -10.0) + generator.normal(0, 5, n))
    differences = np.tile([-1.0, 1.0], n)
    indifferent = comparisons(np.full(2 * n, 0.5), differences)
    alone, held = estimate_length_controlled(cut), estimate_length_controlled(cut, indifferent)
    assert abs(held.length) < abs(alone.length)
    assert cut.preferences.mean() < held.rate < alone.rate


def test_instructions_without_a_preference_count_in_the_rate_and_not_in_the_fit():
    given = comparisons([0.9, 0.3] * 20, [5, 5, -5, -5] * 10, [1, -1] * 20)
    more = comparisons([*given.preferences, np.nan], [*given.differences, 0], [*given.difficulties, 30])
    found, fuller = estimate_length_controlled(given), estimate_length_controlled(more)
    assert fuller.rate == pytest.approx((40 * found.rate + 1) / 41, abs=1e-3)


def test_a_model_that_always_wins_has_a_finite_regression_and_a_rate_near_one():
    found = estimate_length_controlled(comparisons(np.ones(50), np.linspace(-5, 5, 50)))
    assert np.isfinite(found).all()
    assert found.rate > 0.99


@pytest.mark.parametrize(
    ("preferences", "differences", "message"),
    [
        ([0.5, 2.0], [0, 0], r"must lie in \[0, 1\]"),
        ([0.5], [0, 0], "three columns of one length"),
        ([0.5], [np.inf], "must be finite"),
        ([0.5, np.nan, 0, 1, 1], [0] * 5, "needs 5 comparisons or more"),
    ],
)
def test_unusable_comparisons_are_refused(preferences, differences, message):
    with pytest.raises(ValueError, match=message):
        estimate_length_controlled(comparisons(preferences, differences))
