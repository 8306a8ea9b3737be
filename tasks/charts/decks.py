"""Renders the deck of each data stage and of evaluation as an HTML page.

This code is not included in cache versions (`tasks.lineage.code_digest`), so a changed deck does not rerun a stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.charts.drawing import add_styles
from tasks.charts.pages import page, render_prompt_samples, render_rollout_samples, render_table
from tasks.charts.panels import draw_before_after, mean_scores


def sourcing(
    prompts: int, samples: pa.Table, read: int, set_aside: int, reasons: Mapping[str, Mapping[str, int]]
) -> str:
    """Return the deck of sourcing.

    Args:
        prompts: number of prompts.
        samples: a table of `PROMPTS` with the first prompts of each source.
        read: number of rows that were read.
        set_aside: number of rows in the table of `SET_ASIDE`.
        reasons: for each source, the number of filtered rows by category of reasons.
    """
    figures = {"prompts": f"{prompts:,}", "rows read": f"{read:,}", "set aside": f"{set_aside:,}"}
    rows = [
        {"source": source, "reason": reason, "rows": count}
        for source, counts in reasons.items()
        for reason, count in counts.items()
    ]
    return page(figures, render_table(rows, "Set aside"), render_prompt_samples(samples))


def cleaning(prompts: int, set_aside: pa.Table, samples: pa.Table) -> str:
    """Return the deck of cleaning: the number of prompts, the counts of `SET_ASIDE`, and samples of prompts."""
    counted = set_aside.group_by(["source", "kind"]).aggregate([([], "count_all")])
    counted = counted.rename_columns(["source", "kind", "rows"])
    rows = counted.sort_by([("source", "ascending"), ("kind", "ascending")]).to_pylist()
    figures = {"prompts": f"{prompts:,}", "set aside": f"{set_aside.num_rows:,}"}
    return page(figures, render_table(rows, "Set aside"), render_prompt_samples(samples))


def difficulty(graded: pa.Table, selected: int, bounds: str, max_mean_score: float | None) -> str:
    """Return the deck of the difficulty filter: mean scores in a table of `GRADED`. `selected` prompts are kept."""
    figures = {"graded": f"{graded.num_rows:,}", "kept": f"{selected:,}", "kept if": bounds}
    return page(figures, add_styles(mean_scores(graded, max_mean_score)))


def variants(compared: pa.Table, count: int) -> str:
    """Return the deck of the comparison of `count` checkpoints: the means by domain in a table of `COMPARED`."""
    means = [([], "count_all"), ("pass_rate", "mean"), ("mean_score", "mean"), ("mean_tokens", "mean")]
    rows = compared.group_by(["domain", "variant"]).aggregate(means)
    rows = rows.rename_columns(["domain", "variant", "prompts", "pass_rate", "mean_score", "mean_tokens"])
    ordered = rows.sort_by([("domain", "ascending"), ("variant", "ascending")]).to_pylist()
    return page({"variants": f"{count:,}"}, render_table(ordered, "By domain"))


def judging(prompts: pa.Table, rollouts: pa.Table, judged: int) -> str:
    """Return the deck of the scoring of a shard: the new verdicts, and samples of its `ROLLOUTS`."""
    samples = render_rollout_samples(prompts, rollouts) if rollouts.num_rows else ""
    return page({"scored now": f"{judged:,}"}, samples)


def rollouts(count: int, mean_score: float, unjudged: int, tokens_per_second: float, shards: int) -> str:
    """Return the deck of all rollouts of difficulty."""
    return page(
        {
            "rollouts": f"{count:,}",
            "mean score": f"{mean_score:.1%}",
            "could not be scored": f"{unjudged:,}",
            "tokens/s": f"{tokens_per_second:,.0f}",
            "shards": f"{shards:,}",
        }
    )


def mixture(train: pa.Table, heldout: int, counts: Sequence[Mapping[str, Any]]) -> str:
    """Return the deck of mixing: the mixture, the number of held-out prompts, and the counts of each source."""
    figures = {"to train on": f"{train.num_rows:,}", "held out": f"{heldout:,}"}
    return page(figures, render_table(counts), render_prompt_samples(train))


def evaluation(prompts: pa.Table, rollouts: pa.Table, tokens_per_second: float) -> str:
    """Return the deck of the evaluation of one policy: its `EVALUATION_ROLLOUTS` for all prompts."""
    scores = [score for score in rollouts.column("score").to_pylist() if score is not None]
    figures = {
        "prompts": f"{prompts.num_rows:,}",
        "pass rate": f"{sum(filter(None, rollouts.column('passed').to_pylist())) / max(len(scores), 1):.1%}",
        "mean score": f"{sum(scores) / max(len(scores), 1):.1%}",
        "could not be scored": f"{rollouts.num_rows - len(scores):,}",
        "tokens/s": f"{tokens_per_second:,.0f}",
    }
    return page(
        figures, render_table(_make_benchmark_rows(rollouts), "By benchmark"), render_rollout_samples(prompts, rollouts)
    )


def _make_benchmark_rows(rollouts: pa.Table) -> list[dict[str, Any]]:
    """Return the pass rate and the mean length for each benchmark."""
    judged = rollouts.filter(pc.is_valid(rollouts.column("passed")))
    judged = judged.set_column(
        judged.schema.get_field_index("passed"), "passed", pc.cast(judged.column("passed"), pa.float64())
    )
    means = judged.group_by("benchmark", use_threads=False).aggregate(
        [([], "count_all"), ("passed", "mean"), ("num_tokens", "mean")]
    )
    return [
        {
            "benchmark": row["benchmark"],
            "scored responses": row["count_all"],
            "pass rate": f"{row['passed_mean']:.1%}",
            "tokens, mean": f"{row['num_tokens_mean']:,.0f}",
        }
        for row in means.to_pylist()
    ]


def comparison(evaluation: pa.Table) -> str:
    """Return the deck of the comparison of policies in `EVALUATION`, with the results on its first benchmark."""
    figures, first = {}, evaluation.column("benchmark")[0].as_py()
    for row in evaluation.filter(pc.equal(evaluation.column("metric"), "pass_rate")).to_pylist():
        if row["benchmark"] != first:
            continue
        if row["baseline"] is None:
            figures[row["policy"]] = f"{row['value']:.1%}"
        else:
            interval = f"{100 * row['low']:+.1f} to {100 * row['high']:+.1f}"
            figures[f"{row['policy']} - {row['baseline']}, points"] = f"{100 * row['value']:+.1f} ({interval})"
    return page(figures, add_styles(draw_before_after(evaluation)))
