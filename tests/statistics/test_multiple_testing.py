"""Holm's correction by its definition and by hand, and the margin within which a benchmark is maintained."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.statistics.multiple_testing import holm, maintained
from tests.examples import examples

P_VALUES = st.lists(st.sampled_from([0.0, 0.001, 0.01, 0.012, 0.02, 0.04, 0.3, 0.8, 1.0]), max_size=8)


def rejected(p_values, alpha):
    """The hypotheses that the step-down procedure rejects at level `alpha`, step by step as Holm states it."""
    left, out = list(range(len(p_values))), set()
    while left:
        smallest = min(left, key=lambda index: p_values[index])
        if p_values[smallest] > alpha / len(left):
            break
        left.remove(smallest)
        out.add(smallest)
    return out


def test_a_case_worked_by_hand():
    # 0.005 * 4, then 0.01 * 3, then 0.03 * 2; the last, 0.04 * 1, is raised to the value before it.
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])


def test_one_value_stays_and_none_give_none():
    assert holm([0.04]).tolist() == [0.04]
    assert holm([]).tolist() == []


def test_no_value_exceeds_one():
    assert holm([0.6, 0.7, 0.9]).tolist() == [1, 1, 1]


def test_equal_values_stay_equal():
    assert holm([0.02, 0.01, 0.02]) == pytest.approx([0.04, 0.03, 0.04])


@settings(max_examples=examples(150), deadline=None)
@given(P_VALUES, st.sampled_from([0.0012, 0.011, 0.05, 0.13, 0.5]))
def test_values_of_at_most_alpha_are_those_that_the_procedure_rejects(p_values, alpha):
    assert {index for index, value in enumerate(holm(p_values)) if value <= alpha} == rejected(p_values, alpha)


@settings(max_examples=examples(150), deadline=None)
@given(P_VALUES, st.randoms(use_true_random=False))
def test_the_correction_keeps_order_and_does_not_depend_on_it(p_values, generator):
    adjusted = holm(p_values)
    assert np.all(adjusted >= np.array(p_values))
    assert np.all(adjusted <= np.minimum(1, len(p_values) * np.array(p_values))), "Bonferroni's is never smaller"
    assert np.all(np.diff(adjusted[np.argsort(p_values, kind="stable")]) >= 0)
    mixed = generator.sample(range(len(p_values)), len(p_values))
    assert holm([p_values[index] for index in mixed]) == pytest.approx(adjusted[mixed])


def test_it_equals_the_correction_of_statsmodels():
    multitest = pytest.importorskip("statsmodels.stats.multitest")
    p_values = np.random.default_rng(5).uniform(size=30) ** 3
    np.testing.assert_allclose(holm(p_values), multitest.multipletests(p_values, method="holm")[1])


@pytest.mark.parametrize("bad", [-0.1, 1.1, float("nan")])
def test_what_is_no_p_value_is_refused(bad):
    with pytest.raises(ValueError, match=r"must lie in \[0, 1\]"):
        holm([0.5, bad])


@pytest.mark.parametrize(
    ("low", "margin", "expected"),
    [(-0.01, 0.02, True), (-0.02, 0.02, False), (-0.03, 0.02, False), (0.001, 0, True), (0, 0, False)],
)
def test_a_benchmark_is_maintained_if_its_interval_lies_above_the_margin(low, margin, expected):
    assert maintained(low, margin) is expected


def test_a_benchmark_without_an_interval_is_not_maintained():
    assert maintained(float("nan"), 0.02) is False


@pytest.mark.parametrize("margin", [-0.01, float("nan")])
def test_a_negative_margin_is_refused(margin):
    with pytest.raises(ValueError, match="0 or more"):
        maintained(0.1, margin)
