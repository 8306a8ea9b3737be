"""Renders the page of an experiment, with the options of its variants, their training curves and final results."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import fmean as mean
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from tasks import charts
from tasks.charts import Series, choose_color
from tasks.lineage.differences import find_differences
from tasks.reporting import formats
from tasks.reporting.index import INDEX
from tasks.reporting.page_templates import load_templates
from tasks.reporting.sections import Cost, pass_rates
from tasks.tables.schemas import EVERYTHING
from tasks.tables.single_domain import drop_repeats
from tasks.tables.truncation import format_truncation_warnings

VALIDATION = "validation/"
ON_BENCHMARKS = f"{VALIDATION}benchmarks/"
"""Prefixes of the validation metrics, and of the validation metrics of a benchmark. The benchmark's name follows."""
REWARD = "rewards/"
"""Prefix of the metrics of rewards by name in `EVALUATION`."""

NO_REPORTS: Mapping[str, Sequence[str]] = {}

Metrics = Sequence[Mapping[str, Any]]
"""The metrics of a run, one mapping per step."""
Runs = Mapping[str, Sequence[Metrics]]
"""The metrics of the runs of each variant, one for each seed."""


def render(
    name: str,
    variants: Mapping[str, Mapping[str, Any]],
    metrics: Runs,
    table: pa.Table,
    comparisons: Sequence[Mapping[str, Any]],
    summaries: Mapping[str, Sequence[Mapping[str, Any]]],
    reports: Mapping[str, Sequence[str]] = NO_REPORTS,
) -> str:
    """Return the page as HTML text.

    Args:
        name: name of the experiment.
        variants: for each variant, the non-default options of its three files, by file.
        metrics: the training metrics of the runs of each variant.
        table: the `EVALUATION` table of the policies: the initial checkpoint, and the trained policies, which are named
            after their variants and are means over their runs.
        comparisons: the comparisons with the baseline (`tasks.evaluation.comparison.Evaluation.facts`).
        summaries: the results of the runs of each variant (`tasks.reporting.terminal.make_summary_json`).
        reports: addresses of the reports of the runs of each variant, relative to the page. Without them, the page is
            not in a folder of this machine's outputs, and links neither to them nor to the index of runs.
    """
    shown = drop_repeats(table)
    options = dict(zip(variants, find_differences(list(variants.values())), strict=True))
    return (
        load_templates()
        .get_template("experiment.html.j2")
        .render(
            title=f"rlvr-flyte: {name}",
            style=Markup(charts.STYLE),  # noqa: S704 - the charts' own style sheet
            options=options,
            verdicts=format_lines([row for row in comparisons if row["benchmark"] == EVERYTHING]),
            reports=reports,
            index=f"../../{INDEX}",
            runs=max((len(runs) for runs in metrics.values()), default=1),
            curves=Markup(charts.make_grid(_draw_charts(metrics))),  # noqa: S704 - escaped by the charts
            final=Markup(charts.draw_before_after(shown)),  # noqa: S704 - escaped by the charts
            policies=list(dict.fromkeys(table["policy"].to_pylist())),
            rows=make_final_rows(shown, comparisons),
            rewards=make_reward_rows(shown),
            costs=[_compute_costs(variant, metrics[variant], summaries[variant]) for variant in metrics],
            truncated=format_truncation_warnings(table),
        )
    )


def _compute_costs(variant: str, runs: Sequence[Metrics], summaries: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the work of a variant, summed over its runs: hours of training, tokens, and the cost of all stages."""
    costs = [Cost(**summary["cost"]) for summary in summaries]
    totals = [cost.total for cost in costs if cost.total is not None]
    return {
        "variant": variant,
        "runs": len(runs),
        "seconds": sum(rows[-1].get("seconds", 0.0) for rows in runs if rows),
        "sampled": sum(row.get("generated_tokens", 0.0) for rows in runs for row in rows),
        "trained": sum(row.get("trained_tokens", 0.0) for rows in runs for row in rows),
        "cost": Cost(
            sum(cost.seconds for cost in costs),
            sum(cost.core_hours for cost in costs),
            sum(cost.gpu_hours for cost in costs),
            sum(cost.judging for cost in costs),
            sum(totals) if totals and len(totals) == len(costs) else None,
        ),
    }


def _draw_charts(metrics: Runs) -> list[str]:
    """Draw the validation scores over policy versions and over hours of work, and the training metrics over steps.

    DAPO compares its variants by such curves (arXiv:2503.14476, fig. 1, 2, 6 and 7): validation, entropy, mean
    probability of the trained tokens, and response length.
    """
    benchmarks = _list_names(metrics, ON_BENCHMARKS, "/score")
    scores = {f"Validation: {name}": f"{ON_BENCHMARKS}{name}/score" for name in benchmarks}
    scores["Validation"] = f"{VALIDATION}score"
    by_domain = {f"Reward: {name}": f"reward/{name}" for name in _list_names(metrics, "reward/", "")}
    by_name = {f"Reward by name: {name}": f"rewards/{name}/mean" for name in _list_names(metrics, "rewards/", "/mean")}
    unit = "mean score, with its 95% interval or the range of its runs"
    drawn = [_draw_chart(title, unit, metrics, key) for title, key in scores.items()]
    drawn += [_draw_chart(f"{title}, over time", unit, metrics, key, over_time=True) for title, key in scores.items()]
    drawn.append(_draw_chart("Reward in training", "mean score", metrics, "reward"))
    if len(by_domain) > 1:
        drawn += [_draw_chart(title, "mean score", metrics, key) for title, key in by_domain.items()]
    drawn += [_draw_chart(title, "mean, before its weight", metrics, key) for title, key in by_name.items()]
    drawn.append(_draw_chart("Entropy", "nats per token", metrics, "entropy"))
    drawn.append(_draw_chart("Probability", "mean of trained tokens", metrics, "probability"))
    drawn.append(_draw_chart("Response length", "tokens, mean", metrics, "response_length"))
    return drawn


def _list_names(metrics: Runs, prefix: str, suffix: str) -> list[str]:
    """Return the names between the prefix and the suffix of metrics, sorted."""
    keys = {key for runs in metrics.values() for rows in runs for row in rows for key in row}
    named = {key.removeprefix(prefix) for key in keys if key.startswith(prefix) and key.endswith(suffix)}
    return sorted(name.removesuffix(suffix) for name in named)


def _draw_chart(title: str, unit: str, metrics: Runs, key: str, *, over_time: bool = False) -> str:
    """Draw one metric of all variants: a validation metric over versions or hours with a band, any other over steps.

    A curve is the mean over the runs of a variant. It has a gap at a step without the metric, such as the first step
    after a resume, which has no reward; a version that was not validated leaves none. The band of several runs is their
    range, and that of one run is the interval of its validation.
    """
    validates = key.startswith(VALIDATION)
    x = f"{VALIDATION}version" if validates else "step"
    x_label = "hours of work" if over_time else "policy version" if validates else "training step"
    bounds = [f"{key.removesuffix('score')}{bound}" for bound in ("low", "high")] if validates else []
    series = []
    for position, (name, runs) in enumerate(metrics.items()):
        recorded = [{row[x]: row for row in rows if row.get(key) is not None and x in row} for rows in runs]
        at = sorted(set.intersection(*(set(rows) for rows in recorded))) if recorded else []
        aligned = [[rows[where] for rows in recorded] for where in at]
        if over_time:
            aligned = [rows for rows in aligned if all("seconds" in row for row in rows)]
            across = [mean(row["seconds"] for row in rows) / 3600 for rows in aligned]
        else:
            across = [float(where) for where in at]
        points = [(where, mean(row[key] for row in rows)) for where, rows in zip(across, aligned, strict=True)]
        band = _make_band(aligned, key, bounds)
        if points and not validates:
            every = {float(row[x]) for rows in runs for row in rows if x in row}
            bounds_at = dict(zip(across, band, strict=True)) if band else {}
            points = sorted([*points, *((position, math.nan) for position in every - set(across))])
            band = [bounds_at.get(position, (math.nan, math.nan)) for position, _ in points] if band else band
        series.append(Series(name, points, choose_color("", position), band))
    return charts.draw_curves(title, unit, series, x_label=x_label, integer_x=not over_time)


def _make_band(aligned: Sequence[Metrics], key: str, bounds: Sequence[str]) -> list[tuple[float, float]]:
    """Return the bounds of a curve's band at each of its points, or no bounds if a point has none."""
    if any(len(rows) > 1 for rows in aligned):
        return [(min(row[key] for row in rows), max(row[key] for row in rows)) for rows in aligned]
    if not bounds or not all(bound in row for rows in aligned for row in rows for bound in bounds):
        return []
    low, high = bounds
    return [(float(row[low]), float(row[high])) for [row] in aligned]


def make_final_rows(table: pa.Table, comparisons: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `pass_rates`. Policies other than the baseline also have a key `compared`.

    It is the comparison, or None for a part of a benchmark.
    """
    compared = {(row["benchmark"], row["policy"]): row for row in comparisons}
    rows = pass_rates(table)
    for row in rows:
        for name, of_policy in row["policies"].items():
            if "difference" in of_policy:
                of_policy["compared"] = compared.get((row["benchmark"], name))
    return rows


def make_reward_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the mean score and the mean of each reward by name, one row per benchmark and metric.

    A row has the keys `benchmark`, `metric` and `policies`, which maps each name to a row of `EVALUATION`.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in table.to_pylist():
        if row["baseline"] is not None or not (row["metric"] == "mean_score" or row["metric"].startswith(REWARD)):
            continue
        key = row["benchmark"], row["metric"]
        entry = rows.setdefault(key, {"benchmark": key[0], "metric": key[1], "policies": {}})
        entry["policies"][row["policy"]] = row
    return list(rows.values())


def format_lines(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per comparison of a variant with the baseline, with both pass rates and their difference.

    `comparisons` comes from `tasks.evaluation.comparison.Evaluation.facts`.
    """
    return [_format_line(compared) for compared in comparisons]


def _format_line(compared: Mapping[str, Any]) -> str:
    p_value = compared["p_value"] if compared["adjusted_p_value"] is None else compared["adjusted_p_value"]
    low, high = 100 * compared["gain_low"], 100 * compared["gain_high"]
    what = "held out" if compared["benchmark"] == EVERYTHING else compared["benchmark"]
    return (
        f"{what}: {compared['policy']} {compared['rate']:.1%}, {compared['baseline']} {compared['baseline_rate']:.1%}, "
        f"{100 * compared['gain']:+.1f} points ({low:+.1f} to {high:+.1f}, 95%){_format_between(compared)}, "
        f"p = {p_value:.2g}, {compared['n']:,} prompts{_format_power(compared['detectable'])}"
    )


def _format_between(compared: Mapping[str, Any]) -> str:
    if compared.get("between_low") is None:
        return ""
    low, high = 100 * compared["between_low"], 100 * compared["between_high"]
    return f" over prompts, ({low:+.1f} to {high:+.1f}, 95%) over runs"


def _format_power(detectable: float | None) -> str:
    return "" if detectable is None else f", which detect {formats.detectable(detectable)} or more"
