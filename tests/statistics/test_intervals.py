"""Intervals cover what they claim, agree with their p-values, and equal cases worked by hand."""

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from tasks.statistics.assumptions import CORRELATION, RATE, SHARED, estimate_detectable_gain
from tasks.statistics.intervals import (
    PRIOR,
    Estimate,
    estimate_jackknife_gain,
    estimate_mean,
    estimate_mean_gain,
    estimate_mean_of_rates,
    estimate_rate,
    estimate_rate_gain,
    estimate_run_gain,
)
from tasks.statistics.pass_at_k import estimate_pass_at_k
from tests.examples import examples
from tests.statistics.populations import Cell, examine, majority_of, majority_truly, passes_at, passes_truly


def test_wilson_interval_equals_a_case_worked_by_hand():
    # Five prompts with one sample each, all passed: n_eff = 5, t(0.975, 4) = 2.776445, low = 1 / (1 + t^2 / 5).
    found = estimate_rate(np.ones(5), rollouts=5)
    assert (found.value, found.high) == (1.0, 1.0)
    assert found.low == pytest.approx(1 / (1 + 2.776445**2 / 5), abs=1e-6)


def test_an_effective_sample_size_equals_a_case_worked_by_hand():
    # Rates 1, 3/4, 1/2, 1/4: mean 5/8; of single samples 4 * 15/64 = 15/16; of four samples each 5/16 * 4/3 = 5/12.
    prior = PRIOR / (1 + 15 / 16)
    observations = 4 / ((5 / 12 + prior) / (15 / 16 + prior))
    found = estimate_rate(np.array([1.0, 0.75, 0.5, 0.25]), rollouts=16)
    t = 3.182446  # t(0.975, 3)
    assert found.value == 5 / 8
    centre = (5 / 8 + t**2 / (2 * observations)) / (1 + t**2 / observations)
    half = t * np.sqrt(15 / 64 / observations + t**2 / (4 * observations**2)) / (1 + t**2 / observations)
    assert (found.low, found.high) == pytest.approx((centre - half, centre + half), abs=1e-6)


def test_gain_interval_equals_a_case_worked_by_hand():
    # Differences 1, 1, 0, 0 and the pseudo-prompts: centre 2/6, variance 4/6 - 1/9, t(0.975, 3) = 3.182446.
    found = estimate_rate_gain(np.array([0.0, 0.0, 1.0, 0.0]), np.array([1.0, 1.0, 1.0, 0.0]))
    half = 3.182446 * np.sqrt((2 / 3 - 1 / 9) / 6)
    assert found.value == 0.5
    assert found.low == pytest.approx(1 / 3 - half, abs=1e-6)
    assert found.high == pytest.approx(min(1.0, 1 / 3 + half), abs=1e-6)
    assert found.p_value == pytest.approx(2 * stats.t.sf(1 / 3 / np.sqrt((2 / 3 - 1 / 9) / 6), 3))


def test_the_pseudo_prompt_of_several_samples_equals_a_case_worked_by_hand():
    # Differences 1/2, 1/2, -1/2, 0: squares 3/4. Chances that single samples differ: 1/2, 1/2, 1/2, 0.
    before, after = np.array([0.5, 0.0, 1.0, 0.0]), np.array([1.0, 0.5, 0.5, 0.0])
    prior = PRIOR / (1 + 3 / 2)
    share = (3 / 4 + prior) / (3 / 2 + prior)
    centre, variance = 1 / 12, (3 / 4 + share + share**2) / 6 - (1 / 12) ** 2
    found = estimate_rate_gain(before, after)
    assert (found.low, found.high) == pytest.approx(
        tuple(centre + sign * 3.182446 * np.sqrt(variance / 6) for sign in (-1, 1)), abs=1e-6
    )


def test_equal_weights_change_nothing_and_others_are_those_of_repeated_prompts():
    before, after = np.array([0.25, 0.5, 1.0]), np.array([0.5, 0.5, 0.75])
    three = np.full(3, 3.0)
    assert estimate_rate(before, 12, three) == estimate_rate(before, 12)
    assert estimate_rate_gain(before, after, three) == estimate_rate_gain(before, after)
    weights = np.array([1.0, 2.0, 1.0])
    assert estimate_rate(before, 12, weights).value == estimate_rate(before[[0, 1, 1, 2]], 16).value
    assert (
        estimate_rate_gain(before, after, weights).value
        == estimate_rate_gain(before[[0, 1, 1, 2]], after[[0, 1, 1, 2]]).value
    )


@pytest.mark.parametrize("seed", range(3))
def test_with_one_sample_each_a_gain_has_about_the_p_value_of_mcnemar(seed):
    generator = np.random.default_rng(seed)
    before, after = (generator.random(1_000) < rate for rate in (0.4, 0.44))
    ups, downs = np.sum(after & ~before), np.sum(before & ~after)
    asymptotic = 2 * stats.norm.sf(abs(ups - downs) / np.sqrt(ups + downs))
    assert estimate_rate_gain(before.astype(float), after.astype(float)).p_value == pytest.approx(asymptotic, abs=0.01)


def test_gains_without_evidence_have_a_p_value_of_one():
    same = np.array([0.0, 0.5, 1.0, 1.0])
    assert estimate_rate_gain(same, same).p_value == 1.0
    assert estimate_rate_gain(np.zeros(1), np.ones(1)) == Estimate(1.0, -1.0, 1.0, 1, p_value=1.0)
    assert estimate_mean_gain(same, same).p_value == 1.0


HARD = [
    # the lowest coverages of a rate and of a gain, and the widest interval of a gain at a rate of one half
    Cell(30, 16, 0.98, 0.3, 0.0),
    Cell(100, 32, 0.98, 0.6, 0.0),
    Cell(30, 32, 0.02, 0.8, 0.05),
    Cell(30, 32, 0.5, 0.8, 0.0),
    Cell(30, 32, 0.5, 0.8, 0.05),
    Cell(100, 1, 0.02, 0.3, 0.05),
    Cell(30, 4, 0.02, 0.8, 0.0, redrawn=0.5),
]


@pytest.mark.parametrize("cell", HARD, ids=str)
def test_intervals_cover_what_they_claim_and_are_hardly_wider_than_plain_t(cell):
    found = examine(cell, draws=1_000)
    # 0.93 is promised of each cell, and a share of 1,000 draws has a standard error of at most 0.008
    assert found.rate >= 0.92
    assert found.gain >= 0.92
    assert found.disagree == 0
    if cell.rate == 0.5 and cell.samples >= 4:
        assert found.rate_width <= 1.2
        assert found.gain_width <= 1.2


@pytest.mark.parametrize("correlation", [0.3, 0.8])
@pytest.mark.parametrize(("samples", "k"), [(16, 4), (16, 16)])
def test_intervals_of_pass_at_k_and_majorities_cover_what_they_claim(samples, k, correlation):
    cell = Cell(30, samples, 0.5, correlation, 0.05)
    for metric, truly in (
        (passes_at(k, samples), partial(passes_truly, k)),
        (majority_of(k, samples), partial(majority_truly, k)),
    ):
        found = examine(cell, 500, block=k, sample=metric, truly=truly)
        assert min(found.rate, found.gain) >= 0.91
        assert found.disagree == 0


def test_a_gain_that_two_or_three_prompts_in_a_hundred_show_is_covered():
    # pass@32 of 32 samples is 0 or 1, and few prompts change: Agresti and Min's interval covers 0.86.
    cell = Cell(100, 32, 0.98, 0.8, 0.05)
    found = examine(cell, 1_000, block=32, sample=passes_at(32, 32), truly=partial(passes_truly, 32))
    assert found.gain >= 0.92


@pytest.mark.parametrize(("prompts", "samples"), [(30, 32), (100, 4)])
def test_a_gain_that_is_called_detectable_is_detected_with_about_the_power(prompts, samples):
    gain = estimate_detectable_gain(prompts, samples)
    cell = Cell(prompts, samples, RATE - gain / 2, CORRELATION, gain, redrawn=1 - SHARED)
    assert examine(cell, 1_000).detected == pytest.approx(0.8, abs=0.08)


def test_what_data_detect_is_what_the_plan_says_of_them():
    # As many prompts pass as fail, and a tenth of them change: the assumptions of one sample, met by construction
    before = np.tile([0.0, 1.0], 500)
    generator = np.random.default_rng(1)
    after = np.where(generator.random(1_000) < 2 * RATE * (1 - RATE) * (1 - CORRELATION * SHARED), 1 - before, before)
    assert estimate_rate_gain(before, after).detectable == pytest.approx(estimate_detectable_gain(1_000, 1), rel=0.05)


@pytest.mark.parametrize("k", [2, 3])
def test_intervals_of_pass_at_k_of_four_samples_cover_what_they_claim(k):
    # Skill is Beta(0.4, 1.2) distributed: all k samples fail with the k-th moment of Beta(1.2, 0.4).
    generator, n, samples = np.random.default_rng(12), 64, 4
    truth = 1 - np.prod([(1.2 + i) / (1.6 + i) for i in range(k)])
    hits = 0
    for _ in range(800):
        passed = generator.binomial(samples, generator.beta(0.4, 1.2, n))
        found = estimate_rate(estimate_pass_at_k(np.full(n, samples), passed)[:, k - 1], n * (samples // k))
        hits += found.low <= truth <= found.high
    assert 0.93 <= hits / 800 <= 0.99


@pytest.mark.parametrize(("n", "samples", "floor"), [(64, 4, 0.93), (24, 4, 0.92), (64, 1, 0.93)])
def test_intervals_of_a_policy_that_rises_everywhere_cover_what_they_claim(n, samples, floor):
    # Prompts differ: skill is Beta distributed, the tuned policy adds to it; the truth is known by construction.
    generator = np.random.default_rng(11)
    rate_hits = gain_hits = 0
    trials = 800
    for _ in range(trials):
        skill = generator.beta(0.4, 1.2, n)
        raised = skill + (1 - skill) * 0.3
        old = generator.binomial(samples, skill) / samples
        new = generator.binomial(samples, raised) / samples
        rate, gain = estimate_rate(old, n * samples), estimate_rate_gain(old, new)
        rate_hits += rate.low <= 0.25 <= rate.high
        gain_hits += gain.low <= 0.225 <= gain.high
    assert floor <= rate_hits / trials <= 0.99
    assert floor <= gain_hits / trials <= 0.99


rates = st.lists(st.sampled_from([0.0, 0.25, 0.5, 0.75, 1.0]), min_size=2, max_size=40)


@settings(max_examples=examples(150), deadline=None)
@given(rates)
def test_rate_intervals_hold_their_value_and_never_collapse(means):
    found = estimate_rate(np.array(means), rollouts=4 * len(means))
    assert 0 <= found.low <= found.value <= found.high <= 1
    assert found.high - found.low > 0.01


@settings(max_examples=examples(150), deadline=None)
@given(rates, st.integers(0, 10**6))
def test_gain_intervals_hold_their_value_agree_with_their_p_value_and_mirror_under_exchange(means, seed):
    old = np.array(means)
    new = np.random.default_rng(seed).permutation(old)
    forth, back = estimate_rate_gain(old, new), estimate_rate_gain(new, old)
    assert -1 <= forth.low <= forth.value <= forth.high <= 1
    assert forth.low < forth.high
    assert (forth.p_value < 0.05) == (forth.low > 0 or forth.high < 0)
    assert (back.low, back.high) == pytest.approx((-forth.high, -forth.low))
    assert back.p_value == pytest.approx(forth.p_value)
    failing = estimate_rate_gain(1 - new, 1 - old)
    assert (failing.low, failing.high) == pytest.approx((forth.low, forth.high)), "a pass and a failure are alike"


def test_length_interval_is_the_t_interval():
    # Mean 12, standard error 2 / sqrt(3), t(0.975, 2) = 4.302653.
    found = estimate_mean(np.array([10.0, 12.0, 14.0]))
    assert (found.low, found.high) == pytest.approx((12 - 4.302653 * 2 / 3**0.5, 12 + 4.302653 * 2 / 3**0.5))


def test_the_p_value_of_a_length_is_that_of_the_t_test():
    before, after = np.array([10.0, 12.0, 14.0, 9.0]), np.array([11.0, 15.0, 14.5, 9.0])
    assert estimate_mean_gain(before, after).p_value == pytest.approx(stats.ttest_rel(after, before).pvalue)
    assert estimate_mean_gain(before, before + 1).p_value == 0.0
    assert estimate_mean_gain(before[:1], after[:1]).p_value is None


def test_a_jackknife_has_the_p_value_of_its_interval():
    edge = 0.1 * stats.t.ppf(0.975, 9)
    assert estimate_jackknife_gain(edge, 0.1, 10, 805).p_value == pytest.approx(0.05)
    assert estimate_jackknife_gain(edge, 0.1, 10, 805).low == pytest.approx(0)
    assert estimate_jackknife_gain(0.9, 0.1, 10, 805).high == 1.0


def test_the_bounds_of_a_mean_of_rates_add_in_quadrature():
    found = estimate_mean_of_rates([Estimate(0.5, 0.2, 0.6, 10), Estimate(1.0, 0.6, 1.0, 30)])
    assert (found.value, found.n) == (0.75, 40)
    assert (found.low, found.high) == pytest.approx((0.75 - 0.5 / 2, 0.75 + 0.1 / 2))


def test_the_interval_between_runs_is_welchs():
    # Both variances are 0.02, of two runs each: a standard error of sqrt(0.01 + 0.01) with 2 degrees of freedom.
    gain = estimate_run_gain(np.array([0.2, 0.4]), np.array([0.5, 0.7]))
    half = 4.302653 * math.sqrt(0.02)
    assert (gain.value, gain.low, gain.high) == pytest.approx((0.3, 0.3 - half, 0.3 + half))


def test_one_run_or_runs_without_a_difference_tell_nothing_about_other_runs():
    assert estimate_run_gain(np.array([0.2]), np.array([0.5, 0.7])) is None
    assert estimate_run_gain(np.array([0.2, 0.2]), np.array([0.5, 0.5])) is None
