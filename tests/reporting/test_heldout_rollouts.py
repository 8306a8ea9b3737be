"""Of an evaluation's rollouts the report takes those of the held-out prompts by two policies."""

import pyarrow as pa

from tasks.reporting.heldout_rollouts import select_heldout_rollouts
from tasks.tables.schemas import EVALUATION_ROLLOUTS, ROLLOUTS
from tests.evaluation.test_policy_comparison import rollouts


def test_other_benchmarks_and_policies_are_left_aside():
    table = pa.concat_tables(
        [
            rollouts(policy, tokens, benchmark, a=[1, 0, 1])
            for tokens, policy in enumerate(("before", "other", "after"))
            for benchmark in ("heldout", "quiz")
        ]
    )
    before, after = select_heldout_rollouts([table.slice(0, 4), table.slice(4, 10), table.slice(14)])
    assert (before.schema, before["num_tokens"].to_pylist()) == (ROLLOUTS, [0, 1, 2])
    assert (after.schema, after["num_tokens"].to_pylist()) == (ROLLOUTS, [2, 3, 4])
    assert [part.num_rows for part in select_heldout_rollouts([EVALUATION_ROLLOUTS.empty_table()])] == [0, 0]
