"""Merges the summaries of shards, and counts their rollouts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.rollouts.headlines import format_sampling_headline
from tasks.tables.rewards import collect_reward_values
from tasks.tables.schemas import StageSummary


@dataclass
class Totals:
    """Counts the rollouts of all shards.

    Attributes:
        rollouts: the number of rollouts.
        unjudged: the number of rollouts without a score.
        passed: the number of rollouts that pass.
        score: the sum of the scores.
        rewards: the sum and the number of the rewards of each name.
    """

    rollouts: int = 0
    unjudged: int = 0
    passed: int = 0
    score: float = 0.0
    rewards: dict[str, tuple[float, int]] = field(default_factory=dict)

    def count(self, parts: Iterator[pa.Table]) -> Iterator[pa.Table]:
        """Yield `parts` of a table of `ROLLOUTS`, and count their rows."""
        for part in parts:
            scores = part.column("score")
            self.rollouts += part.num_rows
            self.unjudged += scores.null_count
            self.passed += pc.sum(part.column("passed")).as_py() or 0
            self.score += pc.sum(scores).as_py() or 0.0
            for name, values in collect_reward_values(part).items():
                total, count = self.rewards.get(name, (0.0, 0))
                self.rewards[name] = total + sum(values), count + len(values)
            yield part

    @property
    def mean_score(self) -> float:
        """The mean of the scores, or 0 if no rollout has one."""
        return self.score / max(self.rollouts - self.unjudged, 1)

    def facts(self) -> dict[str, Any]:
        """Return statistics of the scored rollouts: pass rate, mean score, and mean of each reward by name."""
        judged = max(self.rollouts - self.unjudged, 1)
        means = {name: total / count for name, (total, count) in self.rewards.items()}
        return {"pass_rate": self.passed / judged, "mean_score": self.mean_score, "rewards": means}


def merge_summaries(summaries: Sequence[StageSummary]) -> StageSummary:
    """Merge the summaries of all shards: seconds, cores and counts are added; latencies are the maximum."""
    first = min(summaries, key=lambda summary: datetime.timestamp(summary.started_at))
    names = [name for name, value in first.facts.items() if isinstance(value, int | float)]
    facts: dict[str, Any] = {name: sum(summary.facts[name] for summary in summaries) for name in names}
    figures: dict[str, float] = {}
    for summary in summaries:
        for name, value in summary.facts["verifiers"].items():
            is_latency = "seconds" in name and not name.endswith("/busy_seconds")
            figures[name] = max(figures.get(name, 0), value) if is_latency else figures.get(name, 0) + value
    seconds, run = sum(summary.seconds for summary in summaries), summaries[-1].run
    return replace(first, seconds=seconds, headline="", facts=facts | {"verifiers": figures}, run=run)


def describe_sampling(summary: StageSummary, totals: Totals, shards: int) -> None:
    """Complete the merged sampling summary with totals, tokens/s over all shards, and the headline."""
    facts = summary.facts
    speed = facts["output_tokens"] / (facts["generation_seconds"] or 1)
    facts |= {"rollouts": totals.rollouts, "unjudged": totals.unjudged, "tokens_per_second": speed, "shards": shards}
    summary.headline = format_sampling_headline(
        totals.rollouts,
        "rollouts",
        generated=facts["generated"],
        tokens=facts["output_tokens"],
        tokens_per_second=speed,
    ) + (f"; {facts['spared']:,} saved by early stopping" if facts["spared"] else "")
