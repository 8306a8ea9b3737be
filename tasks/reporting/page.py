"""Renders the report, one HTML page that combines the outputs of all stages of a run.

The page is self-contained (inline style, inline SVG, no scripts, no network requests) and a pure function of its
inputs: equal inputs give equal bytes. Completions and prompts are untrusted text. The templates escape everything
except the charts generated here. A section without data says so.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from markupsafe import Markup

from tasks import charts
from tasks.reporting import sections
from tasks.reporting.index import INDEX
from tasks.reporting.page_templates import load_templates
from tasks.reporting.reward_means import compute_reward_means
from tasks.reporting.sample_responses import choose_samples
from tasks.reporting.sampling_costs import compute_sampling_costs
from tasks.tables.losses import WARN_IF_LOST, collect_warnings
from tasks.tables.parquet import validate
from tasks.tables.schemas import EVALUATION, GRADED, LEDGER, MIXTURE, ROLLOUTS, SET_ASIDE, StageSummary
from tasks.tables.single_domain import drop_repeats
from tasks.tables.truncation import format_truncation_warnings


@dataclass
class ReportInputs:
    """The tables, metrics, summaries and texts that the report is rendered from.

    Attributes:
        title: the page's title.
        spec_yaml: the data spec as it was run.
        training_yaml: the training recipe as it was run.
        evaluation_yaml: the evaluation file as it was run.
        set_aside: `SET_ASIDE` rows (dropped rows) of all sources.
        graded: `GRADED` prompts of all sources, before the difficulty filter.
        max_mean_score: prompts are kept for training if their mean score is below this. If None, there is no upper
            bound.
        min_mean_score: prompts are kept if their mean score is above this. If None, there is no lower bound.
        mixture: the `MIXTURE` used for training.
        heldout: `GRADED` prompts of the evaluation.
        metrics: one mapping per step, as logged by the training task.
        ledger: the `LEDGER` of the training run.
        evaluation: the `EVALUATION` table.
        before: `ROLLOUTS` of the initial checkpoint on the held-out prompts.
        after: `ROLLOUTS` of the trained policy on the same prompts.
        summaries: summaries of all stages, in pipeline order.
        run: this run's name. A stage whose summary was made in another run was cached.
        outputs: the outputs of the run (`tasks.reporting.lineage.rows`).
        lineage: versions and seeds of the run. `model` is also shown in the header.
        price_per_gpu_hour: price of one GPU hour, in the currency of the judge's prices, or None if not given.
        warn_if_lost: share of a source's rows above which a stage that dropped them is listed.
        files: names of the options and tables next to the page. The page links to them, and to the index of runs in the
            folder above. It is empty if the page is not in the folder of a run.
        has_view: whether `view/index.html` next to the report shows the responses.
    """

    title: str
    spec_yaml: str
    training_yaml: str
    set_aside: pa.Table
    graded: pa.Table
    max_mean_score: float | None
    mixture: pa.Table
    heldout: pa.Table
    metrics: list[dict[str, Any]]
    ledger: pa.Table
    evaluation: pa.Table
    before: pa.Table
    after: pa.Table
    summaries: list[StageSummary] = field(default_factory=list)
    run: str = ""
    outputs: list[dict[str, str]] = field(default_factory=list)
    lineage: dict[str, str] = field(default_factory=dict)
    evaluation_yaml: str = ""
    min_mean_score: float | None = None
    price_per_gpu_hour: float | None = None
    warn_if_lost: float = WARN_IF_LOST
    files: Sequence[str] = ()
    has_view: bool = False


def render(inputs: ReportInputs) -> str:
    """Return the page as HTML text. Raises `TableError` if a table does not match its schema."""
    _validate(inputs)
    return load_templates().get_template("page.html.j2").render(_make_context(inputs))


def _validate(inputs: ReportInputs) -> None:
    for name, schema in (
        ("set_aside", SET_ASIDE),
        ("graded", GRADED),
        ("mixture", MIXTURE),
        ("heldout", GRADED),
        ("ledger", LEDGER),
        ("evaluation", EVALUATION),
        ("before", ROLLOUTS),
        ("after", ROLLOUTS),
    ):
        validate(getattr(inputs, name), schema, f"report input {name!r}")


def _make_context(inputs: ReportInputs) -> dict[str, Any]:
    """Return the template variables by name: the inputs, and what is computed from them."""
    funnels = sections.count_funnels(
        inputs.set_aside, inputs.graded, inputs.mixture, inputs.heldout, inputs.max_mean_score, inputs.min_mean_score
    )
    evaluation = drop_repeats(inputs.evaluation)
    figures = sections.make_benchmark_rows(evaluation)
    shown = sections.select_shown(figures)
    overall = {row["metric"]: row for row in figures if row["benchmark"] == "all"}
    return {
        **vars(inputs),
        "style": Markup(charts.STYLE),  # noqa: S704 - the charts' own style sheet
        "headline": overall.get("pass_rate"),
        "mean_score": overall.get("mean_score"),
        "samples_per_prompt": _count_samples(inputs.after),
        "steps": len(inputs.metrics),
        "trained_tokens": sum(row.get("trained_tokens") or 0 for row in inputs.metrics),
        "model": inputs.lineage.get("model"),
        "stages": sections.stages(inputs.summaries, inputs.run),
        "stage_facts": sections.list_stage_facts(inputs.summaries),
        "cost": sections.cost(inputs.summaries, None, inputs.price_per_gpu_hour),
        "paid_here": sections.cost(inputs.summaries, inputs.run, inputs.price_per_gpu_hour),
        "some_cached": any(summary.run != inputs.run for summary in inputs.summaries),
        "funnels": funnels,
        "source_ids": {funnel.source: f"source-{number}" for number, funnel in enumerate(funnels)},
        "index": f"../{INDEX}",
        "losses": collect_warnings(inputs.summaries, inputs.warn_if_lost),
        "set_aside_kinds": sections.set_aside_kinds(inputs.set_aside),
        "mixture": sections.make_mixture_rows(inputs.mixture),
        "fates": sections.fates(inputs.ledger),
        "figures": shown,
        "truncated": format_truncation_warnings(inputs.evaluation),
        "policies": sections.policies(evaluation),
        "sampling_costs": compute_sampling_costs(inputs.summaries, inputs.run, inputs.price_per_gpu_hour),
        "rounded_types": sections.list_rounded_types(inputs.summaries),
        "asked_benchmarks": sections.list_asked_benchmarks(inputs.summaries),
        "figures_left_out": len(figures) - len(shown),
        "rewards": compute_reward_means(inputs.summaries, inputs.before, inputs.after, inputs.metrics),
        "never_held_out": sorted(set(_list_domains(inputs.mixture)) - set(_list_domains(inputs.heldout))),
        "unjudged": {
            policy: table.column("score").null_count
            for policy, table in (("before", inputs.before), ("after", inputs.after))
        },
        "p_values": sections.collect_p_values(inputs.summaries),
        "samples": choose_samples(inputs.before, inputs.after, inputs.heldout),
        "charts": {name: Markup(chart) for name, chart in _draw_charts(inputs, funnels).items()},  # noqa: S704 - escaped
    }


def _list_domains(table: pa.Table) -> list[str]:
    return table.column("domain").unique().to_pylist()


def _draw_charts(inputs: ReportInputs, funnels: list[sections.Funnel]) -> dict[str, str]:
    return {
        "funnel": sections.draw_funnels(funnels),
        "mean_scores": charts.mean_scores(inputs.graded, inputs.max_mean_score),
        "mixture": sections.draw_mixture(inputs.mixture),
        "training": charts.draw_training_curves(inputs.metrics),
        "fates": sections.draw_fates(inputs.ledger),
        "evaluation": charts.draw_before_after(drop_repeats(inputs.evaluation)),
    }


def _count_samples(rollouts: pa.Table) -> int:
    return max(rollouts.column("prompt_id").value_counts().field("counts").to_pylist(), default=0)
