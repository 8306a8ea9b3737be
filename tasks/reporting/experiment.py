"""Renders the page of an experiment, with the options of its variants, their training curves and final results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from tasks import charts
from tasks.charts import Series, color_of
from tasks.lineage.differences import differences
from tasks.reporting import formats
from tasks.reporting.page_templates import templates
from tasks.tables.schemas import EVERYTHING
from tasks.tables.truncation import truncation_warnings

VALIDATION = "validation/"
ON_BENCHMARKS = f"{VALIDATION}benchmarks/"
"""Prefixes of the validation metrics, and of the validation metrics of a benchmark. The benchmark's name follows."""

Metrics = Sequence[Mapping[str, Any]]
"""The metrics of a run, one mapping per step."""


def render(
    name: str, variants: Mapping[str, Mapping[str, Any]], metrics: Mapping[str, Metrics], table: pa.Table
) -> str:
    """Return the page as HTML text.

    Args:
        name: name of the experiment.
        variants: for each variant, the non-default options of its three files, by file.
        metrics: the training metrics of each variant.
        table: the `EVALUATION` table of the trained policies, which are named after their variants.
    """
    options = dict(zip(variants, differences(list(variants.values())), strict=True))
    return (
        templates()
        .get_template("experiment.html.j2")
        .render(
            title=f"rlvr-flyte: {name}",
            style=Markup(charts.STYLE),  # noqa: S704 - the charts' own style sheet
            options=options,
            curves=Markup(charts.grid(_charts(metrics))),  # noqa: S704 - escaped by the charts
            final=Markup(charts.before_after(table)),  # noqa: S704 - escaped by the charts
            rows=final_rows(table),
            truncated=truncation_warnings(table),
        )
    )


def _charts(metrics: Mapping[str, Metrics]) -> list[str]:
    """Draw the validation scores over policy versions and over hours of work, and the training metrics over steps.

    DAPO compares its variants by such curves (arXiv:2503.14476, fig. 1, 2, 6 and 7): validation, entropy, mean
    probability of the trained tokens, and response length.
    """
    benchmarks = _names(metrics, ON_BENCHMARKS, "/score")
    scores = {f"Validation: {name}": f"{ON_BENCHMARKS}{name}/score" for name in benchmarks}
    scores["Validation"] = f"{VALIDATION}score"
    by_domain = {f"Reward: {name}": f"reward/{name}" for name in _names(metrics, "reward/", "")}
    drawn = [_chart(title, "mean score and its 95% interval", metrics, key) for title, key in scores.items()]
    drawn += [
        _chart(f"{title}, over time", "mean score and its 95% interval", metrics, key, over_time=True)
        for title, key in scores.items()
    ]
    drawn.append(_chart("Reward in training", "mean score", metrics, "reward"))
    if len(by_domain) > 1:
        drawn += [_chart(title, "mean score", metrics, key) for title, key in by_domain.items()]
    drawn.append(_chart("Entropy", "nats per token", metrics, "entropy"))
    drawn.append(_chart("Probability", "mean of trained tokens", metrics, "probability"))
    drawn.append(_chart("Response length", "tokens, mean", metrics, "response_length"))
    return drawn


def _names(metrics: Mapping[str, Metrics], prefix: str, suffix: str) -> list[str]:
    """Return the names between the prefix and the suffix of metrics, sorted."""
    keys = {key for rows in metrics.values() for row in rows for key in row}
    named = {key.removeprefix(prefix) for key in keys if key.startswith(prefix) and key.endswith(suffix)}
    return sorted(name.removesuffix(suffix) for name in named)


def _chart(title: str, unit: str, metrics: Mapping[str, Metrics], key: str, *, over_time: bool = False) -> str:
    """Draw one metric of all variants: a validation metric over versions or hours with a band, any other over steps."""
    validates = key.startswith(VALIDATION)
    x = "seconds" if over_time else f"{VALIDATION}version" if validates else "step"
    x_label = "hours of work" if over_time else "policy version" if validates else "training step"
    interval = [f"{key.removesuffix('score')}{bound}" for bound in ("low", "high")]
    series = []
    for position, (name, rows) in enumerate(metrics.items()):
        drawn = [row for row in rows if key in row and x in row]
        bounds = [(float(row[interval[0]]), float(row[interval[1]])) for row in drawn] if validates else []
        points = [(float(row[x]) / (3600 if over_time else 1), float(row[key])) for row in drawn]
        series.append(Series(name, points, color_of("", position), bounds))
    return charts.curves(title, unit, series, x_label=x_label, integer_x=not over_time)


def final_rows(table: pa.Table) -> list[dict[str, Any]]:
    """Return the pass rates of all variants, one row per benchmark, in the order of the table.

    A row has the keys `benchmark`, `n` and `variants`. `variants` maps each name to a mapping with `rate` and, except
    for the baseline, its `difference` from the baseline. Both are rows of `EVALUATION`.
    """
    rows: dict[str, dict[str, Any]] = {}
    for row in table.to_pylist():
        if row["metric"] != "pass_rate":
            continue
        entry = rows.setdefault(row["benchmark"], {"benchmark": row["benchmark"], "n": row["n"], "variants": {}})
        entry["variants"].setdefault(row["policy"], {})["rate" if row["baseline"] is None else "difference"] = row
    return list(rows.values())


def lines(comparisons: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return one line per comparison of a variant with the baseline, with both pass rates and their difference.

    `comparisons` comes from `tasks.evaluation.comparison.Evaluation.facts`.
    """
    return [_line(compared) for compared in comparisons]


def _line(compared: Mapping[str, Any]) -> str:
    p_value = compared["p_value"] if compared["adjusted_p_value"] is None else compared["adjusted_p_value"]
    low, high = 100 * compared["gain_low"], 100 * compared["gain_high"]
    what = "held out" if compared["benchmark"] == EVERYTHING else compared["benchmark"]
    return (
        f"{what}: {compared['policy']} {compared['rate']:.1%}, {compared['baseline']} {compared['baseline_rate']:.1%}, "
        f"{100 * compared['gain']:+.1f} points ({low:+.1f} to {high:+.1f}, 95%), p = {p_value:.2g}, "
        f"{compared['n']:,} prompts{_power(compared['detectable'])}"
    )


def _power(detectable: float | None) -> str:
    return "" if detectable is None else f", which detect {formats.detectable(detectable)} or more"
