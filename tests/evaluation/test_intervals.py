"""Intervals cover what they claim, and equal cases worked by hand."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.evaluation.intervals import length_interval, rate_gain, rate_interval, sign_flip_p_value
from tasks.tables.pass_at_k import pass_at_k
from tests.examples import examples


def test_wilson_interval_equals_a_case_worked_by_hand():
    # Five prompts with one sample each, all passed: n_eff = 5, t(0.975, 4) = 2.776445, low = 1 / (1 + t^2 / 5).
    found = rate_interval(np.ones(5), rollouts=5)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 / (1 + 2.776445**2 / 5), abs=1e-6)


def test_gain_interval_equals_a_case_worked_by_hand():
    # Differences 1, 1, 0, 0 and the pseudo-prompts: centre 2/6, variance 3/6 - 1/9, t(0.975, 3) = 3.182446.
    found = rate_gain(np.array([1.0, 1.0, 0.0, 0.0]))
    half = 3.182446 * np.sqrt((1 / 2 - 1 / 9) / 6)
    assert found.value == 0.5
    assert found.low == pytest.approx(1 / 3 - half, abs=1e-6)
    assert found.high == pytest.approx(min(1.0, 1 / 3 + half), abs=1e-6)


def permuted(differences):
    """The p-value of scipy's test: exact up to 13 differences, zeros included."""
    return stats.permutation_test(
        (differences,), np.sum, permutation_type="samples", n_resamples=9_999, vectorized=True, rng=1
    ).pvalue


@pytest.mark.parametrize("prompts", [2, 5, 9, 13])
def test_sign_flips_of_few_prompts_have_the_p_value_of_all_permutations(prompts):
    for seed in range(5):
        differences = np.random.default_rng(seed).integers(-4, 6, prompts) / 8
        assert sign_flip_p_value(differences) == pytest.approx(permuted(differences))


def test_sign_flips_of_one_sample_each_are_the_exact_test_of_mcnemar():
    differences = np.repeat([1.0, -1.0, 0.0], [70, 48, 900])
    assert sign_flip_p_value(differences) == pytest.approx(stats.binomtest(70, 118).pvalue)


def test_sign_flips_of_many_prompts_have_about_the_p_value_of_drawn_permutations(monkeypatch):
    differences = np.random.default_rng(2).integers(-30, 36, 60) / 32
    drawn = sign_flip_p_value(differences)
    assert 0.05 < drawn < 0.9
    assert drawn == pytest.approx(permuted(differences), abs=0.02)  # each has a standard error of at most 0.005
    monkeypatch.setattr("tasks.evaluation.intervals.DRAWN_AT_ONCE", 1 << 10)
    assert sign_flip_p_value(differences) == drawn


def test_sign_flips_are_exact_for_few_prompts():
    # Only 2 of 2^8 sign patterns are as extreme as eight gains out of eight.
    assert sign_flip_p_value(np.full(8, 0.25)) == pytest.approx(2 / 2**8)
    assert sign_flip_p_value(np.zeros(8)) == 1.0
    assert sign_flip_p_value(np.full(60, 0.25)) < 0.001


@pytest.mark.parametrize(("n", "samples", "floor"), [(64, 4, 0.93), (24, 4, 0.92), (64, 1, 0.93)])
def test_intervals_cover_what_they_claim(n, samples, floor):
    # Prompts differ: skill is Beta distributed, the tuned policy adds to it; the truth is known by construction.
    generator = np.random.default_rng(11)
    rate_hits = gain_hits = 0
    trials = 800
    for _ in range(trials):
        skill = generator.beta(0.4, 1.2, n)
        raised = skill + (1 - skill) * 0.3
        old = generator.binomial(samples, skill) / samples
        new = generator.binomial(samples, raised) / samples
        rate, gain = rate_interval(old, n * samples), rate_gain(new - old)
        rate_hits += rate.low <= 0.25 <= rate.high
        gain_hits += gain.low <= 0.225 <= gain.high
    assert floor <= rate_hits / trials <= 0.99
    assert floor <= gain_hits / trials <= 0.99


@pytest.mark.parametrize("k", [2, 3])
def test_intervals_of_pass_at_k_cover_what_they_claim(k):
    # Skill is Beta(0.4, 1.2) distributed: all k samples fail with the k-th moment of Beta(1.2, 0.4).
    generator, n, samples = np.random.default_rng(12), 64, 4
    truth = 1 - np.prod([(1.2 + i) / (1.6 + i) for i in range(k)])
    hits = 0
    for _ in range(800):
        passed = generator.binomial(samples, generator.beta(0.4, 1.2, n))
        found = rate_interval(pass_at_k(np.full(n, samples), passed)[:, k - 1], n * (samples // k))
        hits += found.low <= truth <= found.high
    assert 0.93 <= hits / 800 <= 0.99


rates = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=40)


@settings(max_examples=examples(150), deadline=None)
@given(rates)
def test_rate_intervals_hold_their_value_and_never_collapse(means):
    found = rate_interval(np.array(means), rollouts=4 * len(means))
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0.01


@settings(max_examples=examples(150), deadline=None)
@given(rates, st.integers(0, 10**6))
def test_gain_intervals_hold_their_value_and_mirror_under_exchange(means, seed):
    old = np.array(means)
    new = np.random.default_rng(seed).permutation(old)
    forth, back = rate_gain(new - old), rate_gain(old - new)
    assert -1 <= forth.low <= forth.value <= forth.high <= 1
    assert forth.low < forth.high
    assert (back.low, back.high) == pytest.approx((-forth.high, -forth.low))


def test_length_interval_is_the_t_interval():
    # Mean 12, standard error 2 / sqrt(3), t(0.975, 2) = 4.302653.
    found = length_interval(np.array([10.0, 12.0, 14.0]))
    assert (found.low, found.high) == pytest.approx((12 - 4.302653 * 2 / 3**0.5, 12 + 4.302653 * 2 / 3**0.5))
