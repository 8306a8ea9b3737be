"""Draws the charts that both a stage's deck and the report show."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.charts.drawing import (
    Interval,
    Series,
    Stack,
    choose_color,
    draw_curves,
    draw_histogram,
    draw_intervals,
    draw_shares,
    make_grid,
    render_notice,
)

_MOST_BINS = 16
_BUCKETS = 150  # segments of a long curve


@dataclass(frozen=True)
class Panel:
    """One chart of the training curves: its title, its unit, and its metrics with their labels.

    `x` is the metric on the horizontal axis. Steps without it are left out. All metrics whose names begin with `prefix`
    and end with `suffix` are also drawn, and the text between the two is their label. If any of these metrics has a
    value, the metrics in `beside` are also drawn over steps.
    """

    title: str
    unit: str
    metrics: Mapping[str, str]
    prefix: str = ""
    suffix: str = ""
    from_zero: bool = True
    x: str = "step"
    beside: Mapping[str, str] = field(default_factory=dict)


PANELS = (
    Panel("Reward", "mean score, 0 to 1", {"reward": "all domains"}, prefix="reward/"),
    Panel("Rewards by name", "mean, before their weights", {}, prefix="rewards/", suffix="/mean", from_zero=False),
    Panel(
        "Validation",
        "share, or mean score",
        {"validation/score": "score", "validation/pass_rate": "right"},
        prefix="validation/benchmarks/",
        suffix="/pass_rate",
        x="validation/version",
        beside={"reward": "reward in training"},
    ),
    Panel(
        "Validation: pass@k",
        "share of questions",
        {"validation/pass_at_k": "held-out prompts"},
        prefix="validation/benchmarks/",
        suffix="/pass_at_k",
        x="validation/version",
    ),
    Panel(
        "Validation: majority@k",
        "share of questions",
        {},
        prefix="validation/benchmarks/",
        suffix="/majority_at_k",
        x="validation/version",
    ),
    Panel(
        "Validation by domain",
        "share that is right",
        {},
        prefix="validation/domains/",
        suffix="/pass_rate",
        x="validation/version",
    ),
    Panel(
        "Validation: rewards by name",
        "mean, before their weights",
        {},
        prefix="validation/rewards/",
        suffix="/mean",
        from_zero=False,
        x="validation/version",
    ),
    Panel("Response length", "tokens, mean", {"response_length": "length"}),
    Panel("Truncated responses", "fraction", {"truncated": "truncated"}),
    Panel("Spread of a group's rewards", "standard deviation, mean", {"reward_std": "spread"}),
    Panel("Entropy", "nats per token", {"entropy": "entropy"}),
    Panel("Engine-learner mismatch", "mean |Δ log-probability|, nats", {"mismatch": "mismatch"}),
    Panel(
        "Engine-learner divergence",
        "mean per token, nats",
        {"gen_kl_error": "KL(engine, learner)", "policy_kl_error": "KL(learner, engine)", "js_divergence_error": "JS"},
    ),
    Panel("Importance weight", "mean ratio", {"importance_weight": "weight"}, from_zero=False),
    Panel(
        "Out of bounds",
        "fraction",
        {"is_oob_ratio": "of the correction", "masked": "masked tokens", "off_policy": "off-policy sequences"},
    ),
    Panel("Clipped tokens", "fraction", {"clip_low": "at the lower bound", "clip_high": "at the upper bound"}),
    Panel(
        "Probability",
        "under the policy before the step",
        {"probability": "mean of trained tokens", "clip_high_probability_max": "largest, clipped above"},
    ),
    Panel("KL from the reference", "nats per token", {"kl": "KL"}),
    Panel("Staleness", "policy versions", {"staleness": "mean", "staleness_max": "maximum"}),
    Panel(
        "Groups that teach nothing",
        "fraction of sampled groups",
        {"zero_variance": "all scores equal", "solved": "all right", "unsolved": "none right"},
    ),
    Panel(
        "Hard and solved prompts",
        "number",
        {
            "retired_prompts": "retired as solved",
            "deferred_prompts": "wait for another try",
            "recovered_groups": "rewarded on another try",
            "replayed_groups": "groups trained on again",
        },
    ),
    Panel("Rounds of prompts for a batch", "dynamic sampling", {"sampling_rounds": "rounds"}),
    Panel(
        "Lost",
        "number",
        {
            "actors_lost": "actors",
            "failed_groups": "groups that failed",
            "stale_groups": "groups too old",
            "unjudged_samples": "responses without a judgement",
        },
    ),
    Panel("Alarms", "number", {"alarms": "that ring"}),
    Panel(
        "Throughput",
        "tokens/s",
        {"generated_tokens_per_second": "generated", "trained_tokens_per_second": "trained"},
    ),
    Panel("Where a step's time goes", "seconds", {"learn_seconds": "learning", "wait_seconds": "waiting for groups"}),
    Panel("Idle", "share of the time", {"learner_idle": "learner", "actors_idle": "actors"}),
    Panel("Utilisation", "share of the GPUs' peak", {"learner_mfu": "learner, MFU", "engines_mbu": "engines, MBU"}),
    Panel(
        "Machine time",
        "share",
        {"generation_share": "generation", "training_share": "training", "judging_share": "judging"},
    ),
    Panel("Lost with static batching", "share of the engines' time", {"static_batching_waste": "would be lost"}),
    Panel("KV cache in use", "share, mean over engines", {"kv_cache_usage": "in use"}),
    Panel("Preemptions", "sequences that lost their KV cache to others", {"preemptions": "preempted"}),
    Panel("Sequences an engine is given", "mean over engines", {"sequences_limit": "limit"}),
    Panel("Weight update", "seconds", {"update_seconds": "whole update", "update_pause_seconds": "generation paused"}),
    Panel("Gradient norm", "before clipping", {"grad_norm": "norm"}),
    Panel("Loss", "policy objective", {"loss": "loss"}),
    Panel("Learning rate", "per step", {"learning_rate": "learning rate"}),
)


def draw_training_curves(metrics: Sequence[Mapping[str, Any]]) -> str:
    """Draw the training curves from one mapping of metrics per step. Panels without data are listed in a message.

    A live deck wraps it: `deck(training_curves(metrics))`.
    """
    if not metrics:
        return render_notice("No optimizer step was taken, so there are no curves.")
    charts, missing = [], []
    for panel in PANELS:
        series = _make_series(panel, metrics)
        if series:
            charts.append(draw_curves(panel.title, panel.unit, series, from_zero=panel.from_zero))
        else:
            missing.append(panel.title.lower())
    return make_grid(charts) + (render_notice(f"Not recorded: {', '.join(missing)}.") if missing else "")


def mean_scores(graded: pa.Table, max_mean_score: float | None) -> str:
    """Draw the histogram of mean scores of the initial checkpoint, with dropped prompts in a separate colour.

    A prompt with a mean score below `max_mean_score` is kept. If None, all are kept.

    Each bin is a number of points out of the number of rollouts per prompt. A score between two bins counts in the
    lower one.
    """
    graded = graded.filter(pc.is_valid(graded.column("mean_score")))
    if not graded.num_rows:
        return render_notice("No difficulty was measured.")
    bins = min(max(graded.column("num_rollouts").to_pylist(), default=1), _MOST_BINS)
    domains = sorted(set(graded.column("domain").to_pylist()))
    dropped = "dropped: too easy"
    counts = {name: [0.0] * (bins + 1) for name in (*domains, dropped)}
    for domain, score in zip(graded.column("domain").to_pylist(), graded.column("mean_score").to_pylist(), strict=True):
        is_kept = max_mean_score is None or score < max_mean_score
        counts[domain if is_kept else dropped][math.floor(score * bins + 1e-9)] += 1
    stacks = [Stack(name, counts[name], choose_color(name, i)) for i, name in enumerate(domains)]
    return draw_histogram(
        "Mean score under the initial checkpoint",
        "prompts",
        [f"{points}/{bins}" for points in range(bins + 1)],
        [*stacks, Stack(dropped, counts[dropped], "muted")],
        x_label="mean score",
        threshold=None
        if max_mean_score is None
        else (find_first_bin(max_mean_score, bins), f"kept: below {max_mean_score:g}"),
    )


def find_first_bin(score: float, bins: int) -> int:
    """Return the smallest number of points out of `bins` whose mean is at least `score`."""
    return math.ceil(score * bins - 1e-9)


def draw_before_after(evaluation: pa.Table) -> str:
    """Draw the pass rates of all policies per benchmark, and next to them the differences (`EVALUATION` table)."""
    rows = [row for row in evaluation.to_pylist() if row["metric"] == "pass_rate"]
    colors = {
        name: name if name in ("before", "after") else choose_color("", i)
        for i, name in enumerate(_list_policies(rows))
    }
    pairs = {(row["policy"], row["baseline"]) for row in rows if row["baseline"] is not None}
    rates: list[Interval] = []
    gains: list[Interval] = []
    for row in rows:
        value, low, high = (100 * row[column] for column in ("value", "low", "high"))
        policy, baseline = row["policy"], row["baseline"]
        if baseline is None:
            rates.append(Interval(row["benchmark"], policy, value, low, high, colors[policy]))
        else:
            label = "gain" if len(pairs) == 1 else f"{policy} - {baseline}"
            gains.append(Interval(row["benchmark"], label, value, low, high, colors[policy]))
    return make_grid(
        [
            draw_intervals("Pass rate", "%, with 95% intervals", rates),
            draw_intervals("Gain", "percentage points, paired, with 95% intervals", gains, zero=True),
        ],
        wide=True,
    )


def _list_policies(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    return list(dict.fromkeys(row["policy"] for row in rows))


def _make_series(panel: Panel, metrics: Sequence[Mapping[str, Any]]) -> list[Series]:
    """Return the panel's curves that have at least one finite value."""
    names = dict(panel.metrics)
    if panel.prefix:
        matching = {
            key for row in metrics for key in row if key.startswith(panel.prefix) and key.endswith(panel.suffix)
        }
        names |= {key: key.removeprefix(panel.prefix).removesuffix(panel.suffix) for key in sorted(matching)}
    series = []
    for position, (key, label) in enumerate(_drop_repeat(names, panel, metrics).items()):
        color = "ink" if panel.prefix and key == next(iter(panel.metrics), None) else choose_color(label, position)
        series += _make_curve(
            key, label, color, [row for row in metrics if panel.x in row or panel.x == "step"], panel.x
        )
    for key, label in panel.beside.items() if series else ():
        series += _make_curve(key, label, "muted", metrics, "step")
    return series


def _drop_repeat(names: Mapping[str, str], panel: Panel, metrics: Sequence[Mapping[str, Any]]) -> Mapping[str, str]:
    """Leave out the only metric with the panel's prefix if it repeats the panel's own metric.

    An example is the reward of a domain if there is only one domain.
    """
    own, further = list(panel.metrics), [key for key in names if key not in panel.metrics]
    if len(own) != 1 or len(further) != 1 or any(row.get(own[0]) != row.get(further[0]) for row in metrics):
        return names
    return panel.metrics


def _make_curve(key: str, label: str, color: str, rows: Sequence[Mapping[str, Any]], x: str) -> list[Series]:
    """Return the curve of a metric over the metric `x`, or an empty list if it has no finite value."""
    points = [(_to_float(row.get(x, i + 1)), _to_float(row.get(key))) for i, row in enumerate(rows)]
    points = [point for point in points if math.isfinite(point[0])]
    return [Series(label, thin_points(points), color)] if any(math.isfinite(y) for _, y in points) else []


def thin_points(points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return at most about `2 * _BUCKETS` points: the minimum and maximum of each segment, and both ends.

    A curve of 20,000 steps looks the same, and its page stays small.
    """
    if len(points) <= 2 * _BUCKETS:
        return points
    indices = {0, len(points) - 1}
    for bucket in range(_BUCKETS):
        stretch = range(bucket * len(points) // _BUCKETS, (bucket + 1) * len(points) // _BUCKETS)
        finite = [i for i in stretch if math.isfinite(points[i][1])]
        if finite:
            indices |= {min(finite, key=lambda i: points[i][1]), max(finite, key=lambda i: points[i][1])}
    return [points[i] for i in sorted(indices)]


def _to_float(value: Any) -> float:
    """Return a metric as a float. A missing metric is NaN, which is a gap in a curve."""
    return math.nan if value is None else float(value)


def draw_mixture_difference(sources: Sequence[Mapping[str, Any]]) -> str:
    """Draw the shares of sources in two mixtures, one bar per mixture.

    Each row has the keys `source`, `share_before` and `share_after`.
    """
    stacks = [
        Stack(row["source"], [100 * row["share_before"], 100 * row["share_after"]], choose_color(row["source"], index))
        for index, row in enumerate(sources)
    ]
    return draw_shares("The two mixtures", "% of places, by source", ["before", "after"], stacks)
