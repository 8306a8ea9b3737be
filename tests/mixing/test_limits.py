"""A source that reads more rows than its limit has as many prompts as its limit after the difficulty filter."""

import pyarrow as pa

from tasks.mixing.limits import apply_limits
from tasks.mixing.spec import Limits
from tasks.sourcing.loaders import Row, sample


def table(**rows):
    pairs = [(source, row) for source, numbers in rows.items() for row in numbers]
    return pa.table({"source": [source for source, _ in pairs], "row": [row for _, row in pairs]})


def limits(**counts):
    return Limits.model_validate(
        {"limits": [{"source": name, "prompts": count, "seed": 7} for name, count in counts.items()]}
    )


def test_of_more_prompts_those_stay_whose_rows_come_first_in_the_sample():
    left, short = apply_limits(table(many=range(50), other=range(5)), limits(many=10))
    stayed = [row["row"] for row in left.to_pylist() if row["source"] == "many"]
    assert sorted(stayed) == sorted(row.index for row in sample((Row(i, {}) for i in range(50)), 10, 7))
    assert stayed == sorted(stayed)
    assert left.num_rows == 10 + 5
    assert short == {}


def test_a_source_that_does_not_reach_its_limit_is_named_with_both_numbers():
    left, short = apply_limits(table(few=range(3)), limits(few=10, gone=2))
    assert left.num_rows == 3
    assert short == {"few": (3, 10), "gone": (0, 2)}


def test_without_limits_nothing_changes():
    prompts = table(some=range(3))
    assert apply_limits(prompts, Limits()) == (prompts, {})
