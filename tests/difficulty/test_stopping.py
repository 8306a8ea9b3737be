"""A prompt's sampling ends when its fate is decided, and never before."""

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.difficulty.stopping import Bounds, count_remaining

BOUNDS = Bounds()


def stopped(scores, samples=8, bounds=BOUNDS):
    """The scores that are drawn of those that all rollouts would have."""
    taken = 0
    while count := count_remaining(scores[:taken], samples, bounds):
        taken += count
    return scores[:taken]


def mean(scores):
    judged = [score for score in scores if score is not None]
    return sum(judged) / len(judged) if judged else None


def test_of_eight_at_62_percent_four_failures_or_five_passes_decide():
    assert count_remaining([], 8, BOUNDS) == 4
    assert count_remaining([0, 0, 0, 0], 8, BOUNDS) == 0
    assert count_remaining([1, 1, 1, 1], 8, BOUNDS) == 1
    assert count_remaining([1, 1, 1, 1, 1], 8, BOUNDS) == 0
    assert count_remaining([1, 1, 0, 0], 8, BOUNDS) == 2


def test_a_lower_bound_of_zero_waits_for_the_first_pass_of_what_fails():
    bounds = Bounds(min_mean_score=0.0)
    assert count_remaining([0, 0, 0, 0], 8, bounds) == 1
    assert count_remaining([0, 0, 0, 0, 1], 8, bounds) == 0
    assert count_remaining([0] * 8, 8, bounds) == 0


def test_without_an_upper_bound_only_the_lower_one_decides():
    assert count_remaining([1], 8, Bounds(max_mean_score=None)) == 0
    bounds = Bounds(max_mean_score=None, min_mean_score=0.25)
    assert (bounds.keep(1.0), bounds.keep(0.25), str(bounds)) == (True, False, "above 25.0%")
    assert str(Bounds(max_mean_score=None)) == "of any value"


@pytest.mark.parametrize(
    "bounds", [BOUNDS, Bounds(min_mean_score=0.0), Bounds(max_mean_score=0.9, min_mean_score=0.25)]
)
def test_all_outcomes_of_eight_rollouts_have_the_fate_that_all_eight_give_them(bounds):
    drawn = 0
    for scores in itertools.product([0.0, 1.0], repeat=8):
        taken = stopped(list(scores), bounds=bounds)
        assert bounds.keep(mean(taken)) == bounds.keep(mean(scores))
        drawn += len(taken)
    assert drawn < 8 * 2**8


@given(
    st.lists(st.none() | st.floats(0, 1), min_size=1, max_size=12),
    st.none() | st.floats(0.05, 1),
    st.none() | st.floats(0, 0.99),
)
def test_partial_scores_and_judges_that_fail_change_no_fate(scores, highest, lowest):
    bounds = Bounds(max_mean_score=highest, min_mean_score=lowest)
    taken = stopped(scores, len(scores), bounds)
    if len(taken) < len(scores):
        # within rounding of a bound either fate is right
        assert bounds.keep(mean(taken)) == bounds.keep(mean(scores)) or any(
            bound is not None and abs(mean(scores) - bound) < 1e-9 for bound in (highest, lowest)
        )
    else:
        assert taken == scores
