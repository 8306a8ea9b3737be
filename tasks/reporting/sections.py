"""Computes the data of the report's sections from the tables, as plain values and charts for the templates."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from tasks.charts import Stack, choose_color, draw_shares
from tasks.excerpts.texts import shorten
from tasks.tables.losses import extract_general_reasons
from tasks.tables.schemas import AFTER, BEFORE, StageSummary

FATES = {
    "trained": "the learner took a step with it",
    "replayed": "trained on again instead of a group without a gradient; it has the same tokens as its first row",
    "zero_variance": "every completion scored the same, so its advantages are 0; another group took its place",
    "stale": "too many policy versions passed before its turn",
    "failed": "generation or scoring failed permanently",
    "unused": "finished or under way when the last step was taken",
}
"""The outcomes of sampled groups with their descriptions, in the order of the report."""

_FATE_COLORS = {
    "trained": "after",
    "zero_variance": "muted",
    "stale": "orange",
    "failed": "red",
    "unused": "before",
    "replayed": "violet",
}
EVALUATION_STAGE = "evaluation"
SECTION_OF_STAGE = {
    "sourcing": "sources",
    "cleaning": "sources",
    "merging": "sources",
    "rollouts": "difficulty",
    "judging": "difficulty",
    "difficulty": "difficulty",
    "variants": "difficulty",
    "mixing": "mixture",
    "training": "training",
    EVALUATION_STAGE: "evaluation",
    "comparison": "evaluation",
    "harness": "evaluation",
}
"""The report's section about each stage. The facts of all others are in the last section, on lineage."""
BEFORE_GRADING = ("sourcing", "cleaning", "difficulty")
"""Stages whose dropped rows are not among the graded prompts."""
HARNESS_STAGE = "harness: "
"""Prefix of the names of stages that run lm-evaluation-harness on a policy."""

_VALUE_LIMIT = 160  # maximum number of characters of an invalid value in the report


@dataclass
class Funnel:
    """Counts the outcomes of one source's rows. The counts after `set_aside` are of prompts.

    `rows` is the number of rows read. A kept prompt is used for training, held out, or left over by the mixture's
    quotas.
    """

    source: str
    rows: int = 0
    set_aside: int = 0
    graded: int = 0
    never_passed: int = 0
    too_easy: int = 0
    too_hard: int = 0
    selected: int = 0
    train: int = 0
    heldout: int = 0
    left_over: int = 0


def count_funnels(
    set_aside: pa.Table,
    graded: pa.Table,
    mixture: pa.Table,
    heldout: pa.Table,
    max_mean_score: float | None,
    min_mean_score: float | None = None,
) -> list[Funnel]:
    """Return one funnel per source, sorted by name, followed by the total if there are several."""
    before = set_aside.filter(pc.is_in(set_aside.column("stage"), pa.array(BEFORE_GRADING)))
    ids, rates, scores = (graded.column(name) for name in ("prompt_id", "pass_rate", "mean_score"))
    # Unmeasured prompts are neither too easy nor too hard. -0.5 and 1.5 lie outside of all scores: they replace missing
    # scores and bounds.
    too_easy = pc.greater_equal(pc.fill_null(scores, -0.5), 1.5 if max_mean_score is None else max_mean_score)
    too_hard = pc.less_equal(pc.fill_null(scores, 1.5), -0.5 if min_mean_score is None else min_mean_score)
    keep = pc.invert(pc.or_(too_easy, too_hard))
    is_in = {
        name: pc.is_in(ids, table.column("prompt_id").unique())
        for name, table in (("train", mixture), ("heldout", heldout))
    }
    flags = {
        "never_passed": pc.fill_null(pc.equal(rates, 0), False),
        "too_easy": too_easy,
        "too_hard": too_hard,
        "selected": keep,
        **is_in,
        "left_over": pc.and_(keep, pc.invert(pc.or_(is_in["train"], is_in["heldout"]))),
    }
    counted = pa.table({"source": graded.column("source"), **{n: pc.cast(f, pa.int64()) for n, f in flags.items()}})
    sums = counted.group_by("source").aggregate([([], "count_all"), *((name, "sum") for name in flags)]).to_pylist()
    by_source = {
        row["source"]: Funnel(row["source"], graded=row["count_all"], **{name: row[f"{name}_sum"] for name in flags})
        for row in sums
    }
    for row in before.group_by("source").aggregate([([], "count_all")]).to_pylist():
        by_source.setdefault(row["source"], Funnel(row["source"])).set_aside = row["count_all"]
    for funnel in by_source.values():
        funnel.rows = funnel.set_aside + funnel.graded
    ordered = [by_source[source] for source in sorted(by_source)]
    return [*ordered, _sum_funnels(ordered)] if len(ordered) > 1 else ordered


def draw_funnels(listed: Sequence[Funnel]) -> str:
    """Draw the outcomes of each source's rows as stacked bars."""
    sources = listed[:-1] if len(listed) > 1 else listed  # the last row of several is the total
    parts = (
        ("train", "train", "after"),
        ("held out", "heldout", "blue"),
        ("kept, left over", "left_over", "before"),
        ("too easy", "too_easy", "muted"),
        ("too hard", "too_hard", "orange"),
        ("set aside", "set_aside", "red"),
    )
    stacks = [Stack(label, [getattr(funnel, name) for funnel in sources], color) for label, name, color in parts]
    return draw_shares("Where the rows went", "rows per source", [funnel.source for funnel in sources], stacks)


def set_aside_kinds(set_aside: pa.Table) -> list[dict[str, Any]]:
    """Return the dropped rows by source and kind of reason, most frequent first, with the first row of each.

    The kind is the reason up to its first colon, with numbers removed.
    """
    kinds = set_aside.append_column("shown", extract_general_reasons(set_aside))
    ordered = kinds.sort_by([("source", "ascending"), ("row", "ascending")])
    first = [(name, "first") for name in ("row", "reason", "value")]
    counted = ordered.group_by(["source", "shown"], use_threads=False).aggregate([([], "count_all"), *first])
    rows = sorted(counted.to_pylist(), key=lambda row: (-row["count_all"], row["source"], row["shown"]))
    return [
        {
            "source": row["source"],
            "kind": row["shown"],
            "count": row["count_all"],
            "row": row["row_first"],
            "reason": row["reason_first"],
            "value": shorten(row["value_first"], _VALUE_LIMIT),
        }
        for row in rows
    ]


def make_mixture_rows(mixture: pa.Table) -> list[dict[str, Any]]:
    """Return the number of distinct training prompts by domain and source, and their shares of the mixture."""
    once = mixture.append_column("once", pc.cast(pc.equal(mixture.column("repeat"), 0), pa.int64()))
    sums = [([], "count_all"), ("once", "sum"), ("pass_rate", "mean"), ("mean_tokens", "mean")]
    counted = once.group_by(["domain", "source"]).aggregate(sums)
    return [
        {
            "domain": row["domain"],
            "source": row["source"],
            "prompts": row["once_sum"],
            "taken": row["count_all"],
            "share": row["count_all"] / mixture.num_rows,
            "pass_rate": row["pass_rate_mean"],
            "mean_tokens": row["mean_tokens_mean"],
        }
        for row in counted.sort_by([("domain", "ascending"), ("source", "ascending")]).to_pylist()
    ]


def draw_mixture(mixture: pa.Table) -> str:
    """Draw the training prompts as one bar per domain, stacked by source."""
    rows = make_mixture_rows(mixture)
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    stacks = [
        Stack(
            row["source"],
            [row["prompts"] if domain == row["domain"] else 0 for domain in domains],
            choose_color(row["source"], i),
        )
        for i, row in enumerate(rows)
    ]
    return draw_shares("Training prompts", "prompts per domain, by source", domains, stacks)


def fates(ledger: pa.Table) -> list[dict[str, Any]]:
    """Return the numbers of groups, completions and tokens for each outcome, and its most frequent detail."""
    groups: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in ledger.select(["fate", "num_tokens", "detail"]).to_pylist():
        groups[row["fate"]].append(row)
    known = [fate for fate in FATES if fate in groups]
    return [
        {
            "fate": fate,
            "meaning": FATES.get(fate, ""),
            "groups": len(groups[fate]),
            "share": len(groups[fate]) / ledger.num_rows,
            "completions": sum(len(row["num_tokens"]) for row in groups[fate]),
            "tokens": sum(sum(row["num_tokens"]) for row in groups[fate]),
            "detail": _find_most_frequent(row["detail"] for row in groups[fate] if row["detail"]),
        }
        for fate in [*known, *sorted(set(groups) - set(FATES))]
    ]


def draw_fates(ledger: pa.Table) -> str:
    """Draw the outcomes of sampled groups, one bar per domain."""
    counts = Counter(zip(ledger.column("domain").to_pylist(), ledger.column("fate").to_pylist(), strict=True))
    domains = sorted({domain for domain, _ in counts})
    names = [*FATES, *sorted({fate for _, fate in counts} - set(FATES))]
    stacks = [
        Stack(
            fate.replace("_", " "),
            [counts[domain, fate] for domain in domains],
            _FATE_COLORS.get(fate, "violet"),
        )
        for fate in names
    ]
    return draw_shares("Outcome of every sampled group", "groups", domains, stacks)


def add_policy_names(summaries: Sequence[StageSummary], policies: Sequence[str]) -> list[StageSummary]:
    """Return the summaries with evaluations renamed by policy, in the order given.

    Names become `evaluation: before`, and `harness: mmlu of before` for a benchmark that the harness runs.
    """
    waiting: dict[str, Iterator[str]] = defaultdict(lambda: iter(policies))

    def format_stage(stage: str) -> str:
        if stage == EVALUATION_STAGE:
            return f"{stage}: {next(waiting[stage], '?')}"
        return f"{stage} of {next(waiting[stage], '?')}" if stage.startswith(HARNESS_STAGE) else stage

    return [replace(summary, stage=format_stage(summary.stage)) for summary in summaries]


def stages(summaries: Sequence[StageSummary], run: str) -> list[dict[str, Any]]:
    """Return the pipeline's stages in the order given, with their times and whether they were cached.

    Runs of the same stage (`sourcing: a`, `sourcing: b`) are combined. `section` is the report's section about it.
    """
    groups: dict[str, list[StageSummary]] = defaultdict(list)
    for summary in summaries:
        groups[summary.stage.partition(":")[0]].append(summary)
    total = sum(summary.seconds for summary in summaries) or 1.0
    listed = []
    for name, runs in groups.items():
        seconds = sum(run.seconds for run in runs)
        parts = ", ".join(run.stage.partition(":")[2].strip() for run in runs)
        headline = runs[0].headline if len(runs) == 1 else f"{len(runs)} runs: {parts}"
        cached = all(summary.run != run for summary in runs)
        listed.append(
            {
                "name": name,
                "section": SECTION_OF_STAGE.get(name, "lineage"),
                "seconds": seconds,
                "share": seconds / total,
                "headline": headline,
                "cached": cached,
            }
        )
    return listed


@dataclass(frozen=True)
class Cost:
    """The cost of stages: wall time in seconds, core hours and GPU hours reserved, and their price.

    Attributes:
        judging: price of the judge's tokens, in the currency of its prices.
        total: price of the judge's tokens and of the GPU hours, or None if GPUs were used and have no price.
    """

    seconds: float
    core_hours: float
    gpu_hours: float
    judging: float = 0.0
    total: float | None = None


def cost(summaries: Sequence[StageSummary], run: str | None = None, price_per_gpu_hour: float | None = None) -> Cost:
    """Return the cost of all stages. With `run`, only stages that ran in that run count, and not cached ones."""
    counted = [summary for summary in summaries if run is None or summary.run == run]
    gpu_hours = sum(summary.seconds * summary.gpus for summary in counted) / 3600
    judging = sum(summary.facts.get("verifiers", {}).get("judge/cost", 0.0) for summary in counted)
    has_total = price_per_gpu_hour is not None or (judging and not gpu_hours)
    return Cost(
        sum(summary.seconds for summary in counted),
        sum(summary.seconds * summary.cores for summary in counted) / 3600,
        gpu_hours,
        judging,
        gpu_hours * (price_per_gpu_hour or 0.0) + judging if has_total else None,
    )


def list_stage_facts(summaries: Sequence[StageSummary]) -> list[dict[str, Any]]:
    """Return every summary as a row, with its facts as indented JSON."""
    return [
        {
            "name": summary.stage,
            "started_at": summary.started_at,
            "seconds": summary.seconds,
            "headline": summary.headline,
            "image": summary.image,
            "facts": json.dumps(summary.facts, indent=2, sort_keys=True, ensure_ascii=False),
        }
        for summary in summaries
    ]


def collect_p_values(summaries: Sequence[StageSummary]) -> dict[str, float]:
    """Return the p-value of the gain from training on each benchmark, corrected for the number of benchmarks."""
    return {
        comparison["benchmark"]: comparison["p_value"]
        if comparison.get("adjusted_p_value") is None
        else comparison["adjusted_p_value"]
        for comparison in _list_gains(summaries)
    }


def list_asked_benchmarks(summaries: Sequence[StageSummary]) -> list[dict[str, Any]]:
    """Return the benchmarks of the evaluation file, one row each, from the facts of the comparison stage.

    A row has the keys `name`, `licence`, `asked` and `rows` (the number of questions used, and the number on the card),
    `margin` and `maintained`. The last two are None if the benchmark has no margin.
    """
    maintained = {comparison["benchmark"]: comparison.get("maintained") for comparison in _list_gains(summaries)}
    return [
        {**benchmark, "maintained": maintained.get(benchmark["name"])}
        for summary in summaries
        if "comparisons" in summary.facts
        for benchmark in summary.facts.get("benchmarks", ())
    ]


def list_rounded_types(summaries: Sequence[StageSummary]) -> list[str]:
    """Return the 16-bit data types of the evaluations, whose rounding depends on the batches of the engine."""
    types = {summary.facts.get("dtype") for summary in summaries}
    return [name for name in ("bfloat16", "float16") if name in types]


def _list_gains(summaries: Sequence[StageSummary]) -> list[dict[str, Any]]:
    """Return the comparisons of the trained policy with the initial checkpoint, by benchmark."""
    return [
        comparison
        for summary in summaries
        for comparison in summary.facts.get("comparisons", ())
        if (comparison["policy"], comparison["baseline"]) == (AFTER, BEFORE)
    ]


def make_benchmark_rows(evaluation: pa.Table) -> list[dict[str, Any]]:
    """Return the results of the initial checkpoint and the trained policy, one row per metric and benchmark.

    A row has the keys `metric`, `benchmark`, `n`, and `before`, `after` and `gain`, which are rows of `EVALUATION`.
    Metrics that lack one of the three are omitted.
    """
    rows: dict[tuple[str, str], dict[str, Any]] = {}
    for row in evaluation.to_pylist():
        entry = rows.setdefault((row["metric"], row["benchmark"]), {"n": row["n"]})
        if row["baseline"] is None:
            entry[row["policy"]] = row
        elif (row["policy"], row["baseline"]) == (AFTER, BEFORE):
            entry["gain"] = row
    metrics = list(dict.fromkeys(metric for metric, _ in rows))
    return [
        {"metric": metric, "benchmark": benchmark, **rows[metric, benchmark]}
        for metric in metrics
        for benchmark in dict.fromkeys(name for _, name in rows)
        if {"before", "after", "gain"} <= rows.get((metric, benchmark), {}).keys()
    ]


def policies(evaluation: pa.Table) -> list[dict[str, Any]]:
    """Return the rows of `pass_rates` of benchmarks that more than two policies answered."""
    return [row for row in pass_rates(evaluation) if len(row["policies"]) > 2]


def pass_rates(evaluation: pa.Table) -> list[dict[str, Any]]:
    """Return the pass rates of all policies, one row per benchmark, in the order of the table.

    A row has the keys `benchmark`, `n` and `policies`. `policies` maps each name to a mapping with `rate` and, except
    for the baseline, its `difference` from the baseline. Both are rows of `EVALUATION`.
    """
    rows: dict[str, dict[str, Any]] = {}
    passed = evaluation.filter(pc.equal(evaluation.column("metric"), "pass_rate")).to_pylist()
    for row in passed:
        entry = rows.setdefault(row["benchmark"], {"benchmark": row["benchmark"], "n": row["n"], "policies": {}})
        # The last difference of a policy is its difference from the file's baseline: see `tasks.evaluation.comparison`.
        entry["policies"].setdefault(row["policy"], {})["rate" if row["baseline"] is None else "difference"] = row
    return list(rows.values())


def select_shown(figures: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the rows of `make_benchmark_rows` for a page, with pass@k only for powers of two and the largest k."""
    largest: dict[str, int] = {}
    for row in figures:
        largest[row["benchmark"]] = max(_parse_k(row["metric"]), largest.get(row["benchmark"], 0))
    sized = [(row, _parse_k(row["metric"])) for row in figures]
    return [row for row, k in sized if k & (k - 1) == 0 or k == largest[row["benchmark"]]]


def _parse_k(metric: str) -> int:
    """Return the k of a metric `pass@k`, or 0 for any other metric."""
    name, _, k = metric.partition("@")
    return int(k) if name == "pass" else 0


def _sum_funnels(listed: Sequence[Funnel]) -> Funnel:
    numbers = [name for name in Funnel.__dataclass_fields__ if name != "source"]
    return Funnel("total", **{name: sum(getattr(funnel, name) for funnel in listed) for name in numbers})


def _find_most_frequent(details: Iterable[str]) -> str:
    counts = Counter(details)
    return min(counts, key=lambda detail: (-counts[detail], detail)) if counts else ""
