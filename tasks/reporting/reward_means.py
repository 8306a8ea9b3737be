"""Computes the mean of each named reward in every stage of a run, for the report."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa

from tasks.tables.rewards import collect_reward_values
from tasks.tables.schemas import StageSummary


def compute_reward_means(
    summaries: Sequence[StageSummary], before: pa.Table, after: pa.Table, metrics: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return the unweighted mean of each named reward in difficulty, training and the evaluations.

    A row has the keys `name`, `difficulty`, `first_step`, `last_step`, `before` and `after`. A value is None if the
    reward was not computed there. Only prompts with several rewards or with a user-defined reward function have rows.
    """
    measured = [summary.facts["rewards"] for summary in summaries if "rewards" in summary.facts]
    steps = [
        {key.removeprefix("rewards/").removesuffix("/mean"): value for key, value in row.items() if _is_reward(key)}
        for row in metrics
    ]
    recorded = [step for step in steps if step] or [{}]
    columns = {
        "difficulty": measured[0] if measured else {},
        "first_step": recorded[0],
        "last_step": recorded[-1],
        **{
            policy: {name: statistics.fmean(values) for name, values in collect_reward_values(rollouts).items()}
            for policy, rollouts in (("before", before), ("after", after))
        },
    }
    names = dict.fromkeys(name for means in columns.values() for name in means)
    return [{"name": name, **{column: means.get(name) for column, means in columns.items()}} for name in names]


def _is_reward(metric: str) -> bool:
    return metric.startswith("rewards/") and metric.endswith("/mean")
