"""The figures of all rollouts of difficulty: passes, points, and the mean of each reward by name."""

from datetime import UTC, datetime

import pytest

from tasks.difficulty.summaries import Totals, merge_summaries
from tasks.tables.parquet import build_table
from tasks.tables.schemas import ROLLOUTS, StageSummary


def named(**values):
    return [{"name": name, "value": value} for name, value in values.items()]


def part(*rows):
    columns = {"prompt_id": "p", "response": "x", "num_tokens": 1, "finish_reason": "stop", "policy": "initial"}
    names = ("score", "passed", "rewards", "error")
    listed = [{**columns, "sample": number, **dict(zip(names, row, strict=True))} for number, row in enumerate(rows)]
    return build_table(listed, ROLLOUTS, "rollouts")


def test_totals_count_passes_points_and_each_reward_over_the_responses_to_which_it_applies():
    totals = Totals()
    parts = [
        part((0.2, False, named(math=0.0, f=1.0), None), (None, None, None, "away")),
        part((1.0, True, named(math=1.0, f=None), None), (0.5, False, [], None)),
    ]
    assert list(totals.count(iter(parts))) == parts
    assert (totals.rollouts, totals.unjudged, totals.passed) == (4, 1, 1)
    facts = totals.facts()
    assert facts["pass_rate"] == pytest.approx(1 / 3)
    assert facts["mean_score"] == pytest.approx(1.7 / 3)
    assert facts["rewards"] == {"math": 0.5, "f": 1.0}


def test_without_rollouts_all_figures_are_0():
    assert Totals().facts() == {"pass_rate": 0.0, "mean_score": 0.0, "rewards": {}}


def test_of_all_shards_calls_busy_time_and_cost_are_summed_and_the_longest_latency_counts():
    def shard(calls, latency, busy, cost):
        figures = {
            "math/calls": calls,
            "math/p99_seconds": latency,
            "math/busy_seconds": busy,
            "judge/cost": cost,
        }
        return StageSummary("judging", datetime.now(UTC), 60.0, "", {"verifiers": figures}, gpus=2.0)

    whole = merge_summaries([shard(2, 0.5, 10.0, 0.25), shard(3, 0.25, 20.0, 0.5)])
    assert whole.facts["verifiers"] == {
        "math/calls": 5,
        "math/p99_seconds": 0.5,
        "math/busy_seconds": 30.0,
        "judge/cost": 0.75,
    }
    assert (whole.seconds, whole.gpus) == (120.0, 2.0)
