"""A policy is named, with what it was asked, if more than one of its responses in twenty is truncated."""

import pyarrow as pa
import pytest

from tasks.evaluation.comparison import compare
from tasks.tables.schemas import UNKNOWN_END
from tasks.tables.truncation import format_truncation_warnings
from tests.evaluation.test_policy_comparison import prompts, rollouts

NAMES = [f"p{number:02}" for number in range(20)]


def answered(policy, benchmark, *ends):
    """One response of a policy to each of twenty prompts; the first ones end so, and the others by themselves."""
    table = rollouts(policy, 10, benchmark, **{name: [1.0] for name in NAMES})
    finished = pa.array([*ends, *["stop"] * (len(NAMES) - len(ends))], pa.string())
    return table.set_column(table.schema.names.index("finish_reason"), "finish_reason", finished).cast(table.schema)


def compared(**policies):
    """The figures of policies on held-out prompts and on benchmarks, some of whose responses end so."""
    asked = {name: prompts(**dict.fromkeys(NAMES, "math")) for name in ("heldout", *next(iter(policies.values())))}
    tables = {
        policy: pa.concat_tables([answered(policy, benchmark, *ends[benchmark]) for benchmark in asked])
        for policy, ends in policies.items()
    }
    return compare(tables, asked, next(iter(policies))).table


def test_one_response_in_twenty_is_no_warning_and_two_are():
    one, two = ["length"], ["length"] * 2
    table = compared(before={"heldout": one, "exam": one}, after={"heldout": one, "exam": two})
    [message] = format_truncation_warnings(table)
    assert message.startswith("policy 'after': responses are cut off at max_tokens (exam 10.0%), ")
    assert "benchmark_sampling" in message


def test_a_policy_has_one_message_with_all_that_it_was_asked():
    table = compared(one={"heldout": ["length"] * 20, "exam": ["length"] * 3}, two={"heldout": [], "exam": []})
    [message] = format_truncation_warnings(table)
    assert "(held out 100.0%, math 100.0%, exam 15.0%)" in message


@pytest.mark.parametrize("end", ["stop", UNKNOWN_END])
def test_responses_that_end_otherwise_or_no_one_knows_how_are_no_warning(end):
    ends = {"heldout": [end] * 20, "exam": [end] * 20}
    assert format_truncation_warnings(compared(before=ends, after=ends)) == []


def test_a_protocol_for_policies_that_think_is_named_only_if_what_is_cut_off_has_one():
    cut, whole = ["length"] * 20, []
    [message] = format_truncation_warnings(compared(before={"heldout": cut, "exam": cut, "gsm8k": whole}))
    assert "_olmo3" not in message
    [message] = format_truncation_warnings(compared(before={"heldout": cut, "exam": cut, "gsm8k": cut}))
    assert "gsm8k_olmo3 instead" in message
    assert "exam_olmo3" not in message
