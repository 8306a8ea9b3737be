"""The answer of the majority: votes, ties, blocks and silence by hand, and classes of equal answers."""

import asyncio
import math
from fractions import Fraction
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.statistics import majority as module
from tasks.statistics.majority import majority
from tests.examples import examples

SAMPLES = st.lists(st.sampled_from([None, 0, 1, 2]), min_size=1, max_size=24)


def answer_classes(answers, equivalent):
    """The classes under a relation that is no coroutine."""

    async def asked(answer, first):
        return equivalent(answer, first)

    return asyncio.run(module.answer_classes(answers, asked))


def right(labels, answer):
    return [label == answer for label in labels]


def test_a_plurality_of_32_samples_wins_though_most_samples_are_wrong():
    # 14 right; 10, 5 and 1 of three wrong answers; two samples without one: avg@32 is 14/32, maj@32 is 1.
    labels = [0] * 14 + [1] * 10 + [2] * 5 + [3] + [None] * 2
    passed = right(labels, 0)
    assert majority(labels, passed, 32) == 1
    assert majority(labels, passed, 1) == 14 / 32
    # Blocks of 8: all right; 6 right and 2 wrong; 8 wrong; 5 and 1 wrong.
    assert majority(labels, passed, 8) == 2 / 4


def test_ties_are_shared_by_the_tied_classes():
    assert majority([0, 0, 1, 1, 2], [True, True, False, False, False], 5) == 1 / 2
    assert majority([0, 1, 2], [True, False, False], 3) == pytest.approx(1 / 3)


def test_samples_without_an_answer_never_win():
    assert majority([None, None, None, 5], [False, False, False, True], 4) == 1
    assert majority([None, None], [False, False], 2) == 0
    assert majority([None], [True], 1) == 0, "a verdict without an answer is not one that the majority gives"


def test_smaller_majorities_are_means_over_blocks_of_successive_samples():
    # Blocks (0, 0, 1) and (1, 1, 0); the seventh sample belongs to no block.
    labels = [0, 0, 1, 1, 1, 0, 0]
    assert majority(labels, right(labels, 0), 3) == 1 / 2
    assert majority(labels, right(labels, 0), 4) == 1 / 2, "one block, tied"
    assert majority(labels, right(labels, 0), 7) == 1


def test_a_class_with_mixed_verdicts_counts_by_its_share():
    assert majority([0, 0, 0, 0, 1], [True, True, True, False, False], 5) == 3 / 4


def test_too_few_samples_give_no_figure():
    assert math.isnan(majority([0, 1], [True, False], 3))
    assert math.isnan(majority([], [], 1))


@pytest.mark.parametrize(
    ("labels", "passed", "k", "message"),
    [([0], [True], 0, "1 or more"), ([0, 1], [True], 1, "2 labels and 1 verdicts")],
)
def test_unusable_arguments_are_refused(labels, passed, k, message):
    with pytest.raises(ValueError, match=message):
        majority(labels, passed, k)


@settings(max_examples=examples(60), deadline=None)
@given(SAMPLES)
def test_a_majority_of_one_is_the_share_of_right_samples(labels):
    assert majority(labels, right(labels, 0), 1) == pytest.approx(labels.count(0) / len(labels))


@settings(max_examples=examples(60), deadline=None)
@given(SAMPLES, st.randoms(use_true_random=False))
def test_the_order_of_samples_does_not_matter_to_the_majority_of_all(labels, generator):
    mixed = generator.sample(labels, len(labels))
    expected = majority(labels, right(labels, 1), len(labels))
    assert majority(mixed, right(mixed, 1), len(labels)) == pytest.approx(expected)


@settings(max_examples=examples(60), deadline=None)
@given(SAMPLES)
def test_the_chances_of_all_answers_sum_to_one_where_there_is_an_answer(labels):
    total = sum(majority(labels, right(labels, answer), len(labels)) for answer in (0, 1, 2))
    assert total == pytest.approx(float(set(labels) != {None}))


def test_answers_of_equal_value_are_one_class_by_the_relation_given():
    answers = ["1/2", None, "0.5", "2", "1/2", "4/2", None, "3"]
    classes = answer_classes(answers, lambda answer, first: Fraction(answer) == Fraction(first))
    assert classes == [0, None, 0, 1, 0, 1, None, 2]


def test_no_pair_is_asked_about_twice_and_equal_texts_not_at_all():
    asked = []

    def equivalent(answer, first):
        asked.append((answer, first))
        return answer.lower() == first.lower()

    assert answer_classes(["a", "b", "a", "A", "c", "A", "b"], equivalent) == [0, 1, 0, 0, 2, 0, 1]
    assert asked == [("b", "a"), ("A", "a"), ("c", "a"), ("c", "b")]


def test_an_answer_is_compared_with_the_first_of_a_class_alone():
    # Neighbours are equivalent, and the relation is not transitive: 2 is near 1, but 1 does not represent its class.
    assert answer_classes(["0", "1", "2"], lambda answer, first: abs(int(answer) - int(first)) <= 1) == [0, 0, 1]


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(st.integers(0, 6).map(str)))
def test_classes_are_numbered_in_the_order_of_their_first_answers(answers):
    classes = answer_classes(answers, lambda answer, first: int(answer) % 3 == int(first) % 3)
    firsts = list(dict.fromkeys(classes))
    assert firsts == sorted(firsts) == list(range(len(firsts)))
    for (label, answer), (other, next_answer) in pairwise(zip(classes, answers, strict=True)):
        assert (label == other) == (int(answer) % 3 == int(next_answer) % 3)
