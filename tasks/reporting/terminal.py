"""Prints the summary of a run on the terminal: its stages, gain and cost, and the path of the report."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
from rich.console import Console
from rich.table import Table
from rich.text import Text

from tasks.reporting import formats, sections
from tasks.tables.losses import WARN_IF_LOST, collect_warnings
from tasks.tables.parquet import validate
from tasks.tables.schemas import EVALUATION, StageSummary
from tasks.tables.truncation import format_truncation_warnings


def make_summary_json(
    evaluation: pa.Table,
    summaries: Sequence[StageSummary],
    *,
    run: str,
    seconds: float,
    report: str | Path,
    tokens_per_second: float | None = None,
    price_per_gpu_hour: float | None = None,
) -> dict[str, Any]:
    """Return the machine-readable results of a run: held-out pass rates and mean scores in [0, 1], seconds, stages.

    `benchmarks` has the pass rates on each benchmark of the evaluation file. `warnings` has a message for each policy
    that is often truncated.

    Args:
        evaluation: the `EVALUATION` table.
        summaries: summaries of all stages, in pipeline order.
        run: this run's name. A stage whose summary was made in another run was cached.
        seconds: wall time of this run.
        report: path of the report.
        tokens_per_second: generation throughput during training, if known.
        price_per_gpu_hour: price of one GPU hour. Optional.

    Raises:
        ValueError: the table has no overall pass rate.
    """
    table = validate(evaluation, EVALUATION, "evaluation")
    overall = {row["metric"]: row for row in sections.make_benchmark_rows(table) if row["benchmark"] == "all"}
    if not {"pass_rate", "mean_score"} <= overall.keys():
        raise ValueError("the evaluation has no row with benchmark 'all' and metric 'pass_rate', or 'mean_score'")
    return {
        **_collect_figures(overall["pass_rate"]),
        "mean_score": _collect_figures(overall["mean_score"]),
        "p_value": sections.collect_p_values(summaries).get("all"),
        "n": overall["pass_rate"]["n"],
        "benchmarks": _collect_benchmarks(table, summaries),
        "warnings": format_truncation_warnings(table),
        "detectable": overall["pass_rate"]["gain"]["detectable"],
        "seconds": seconds,
        "tokens_per_second": tokens_per_second,
        "cost": asdict(sections.cost(summaries, None, price_per_gpu_hour)),
        **make_stages_json(summaries, run),
        "report": str(report),
    }


def _collect_benchmarks(table: pa.Table, summaries: Sequence[StageSummary]) -> dict[str, dict[str, Any]]:
    """Return the pass rates of both policies on each benchmark, with its number of questions and its p-value."""
    asked = {row["name"] for row in sections.list_asked_benchmarks(summaries)}
    p_values = sections.collect_p_values(summaries)
    return {
        row["benchmark"]: {**_collect_figures(row), "n": row["n"], "p_value": p_values.get(row["benchmark"])}
        for row in sections.make_benchmark_rows(table)
        if row["metric"] == "pass_rate" and row["benchmark"] in asked
    }


def make_stages_json(summaries: Sequence[StageSummary], run: str) -> dict[str, Any]:
    """Return the stages with their seconds and origin, and their order. A stage of another run was cached.

    If training kept its responses, `responses` is their address, a folder of this machine or on blob storage.
    """
    addresses = _list_response_addresses(summaries)
    return {
        **({"responses": addresses[-1]} if addresses else {}),
        "stages": {summary.stage: {"seconds": summary.seconds, "cached": summary.run != run} for summary in summaries},
        "stage_order": [summary.stage for summary in summaries],
    }


def _collect_figures(row: Mapping[str, Any]) -> dict[str, float]:
    """Return the values of both policies and of the gain, with the bounds of their intervals, by name."""
    columns = {"": "value", "_low": "low", "_high": "high"}
    return {
        f"{policy}{ending}": row[policy][column]
        for policy in ("before", "after", "gain")
        for ending, column in columns.items()
    }


def print_summary(
    summary: Mapping[str, Any],
    report_path: str | Path,
    stages: Sequence[StageSummary],
    console: Console | None = None,
    warn_if_lost: float = WARN_IF_LOST,
) -> None:
    """Print a summary with the headlines of the stages. There are colour codes only on a terminal.

    `summary` is from `make_summary_json`.
    """
    console = console or Console(highlight=False, soft_wrap=True)
    print_stages(console, summary, stages)
    print_losses(console, stages, warn_if_lost)
    print_warnings(console, summary)
    print_gain(console, summary)
    console.print(Text(f"{'wall time':12}{formats.duration(summary['seconds'])}"))
    if summary["tokens_per_second"] is not None:
        console.print(Text(f"{'throughput':12}{formats.count(summary['tokens_per_second'])} tokens/s while training"))
    print_responses(console, stages)
    console.print(Text(f"{'look':12}rlvr view: every response, in the browser; rlvr show: held-out questions, here"))
    console.print(Text(f"{'report':12}{report_path}"), soft_wrap=True)


def print_stages(console: Console, summary: Mapping[str, Any], stages: Sequence[StageSummary]) -> None:
    """Print the table of stages, with an empty line before and after it. `summary` contains `make_stages_json`."""
    console.print()
    console.print(_make_stage_table(summary, stages))
    console.print()


def print_losses(console: Console, stages: Sequence[StageSummary], warn_if_lost: float) -> None:
    """Print a line for each stage and source that lost more than this share of its rows, also in cached stages."""
    for message in collect_warnings(stages, warn_if_lost):
        _print_warning(console, message)


def print_warnings(console: Console, summary: Mapping[str, Any]) -> None:
    """Print a line for each policy that is often truncated. `summary` is from `make_summary_json`."""
    for message in summary["warnings"]:
        _print_warning(console, message)


def _print_warning(console: Console, message: str) -> None:
    console.print(Text(f"{'warning':12}{message}", style="yellow"), soft_wrap=True)


def print_responses(console: Console, stages: Sequence[StageSummary]) -> None:
    """Print the folder with all responses sampled in training, if they are kept."""
    for address in _list_response_addresses(stages):
        console.print(Text(f"{'responses':12}{address}"), soft_wrap=True)


def _list_response_addresses(stages: Sequence[StageSummary]) -> list[str]:
    return [stage.facts["rollouts"] for stage in stages if stage.stage == "training" and stage.facts.get("rollouts")]


def print_gain(console: Console, summary: Mapping[str, Any]) -> None:
    """Print the gains from `make_summary_json`, on held-out prompts and benchmarks, and the data they are based on."""
    console.print(headline(summary))
    console.print(headline(summary["mean_score"], "mean score"))
    evidence = [f"{formats.count(summary['n'])} held-out prompts"]
    if summary["p_value"] is not None:
        evidence.append(formats.p_value(summary["p_value"]))
    evidence.append(_describe_verdict(summary))
    if summary["detectable"] is not None:
        evidence.append(f"detectable with 80% power: {formats.detectable(summary['detectable'])}")
    console.print(Text(f"{'':12}{', '.join(evidence)}", style="dim"))
    for name, figures in summary["benchmarks"].items():
        console.print(headline(figures, name))
        tested = [] if figures["p_value"] is None else [formats.p_value(figures["p_value"])]
        asked = f"{formats.count(figures['n'])} questions"
        console.print(Text(f"{'':12}{', '.join([asked, *tested])}", style="dim"))


def _make_stage_table(summary: Mapping[str, Any], stages: Sequence[StageSummary]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("stage", no_wrap=True)
    table.add_column("time", justify="right", no_wrap=True)
    table.add_column("origin", no_wrap=True)
    table.add_column("result", overflow="fold")
    for stage in stages:
        entry = summary["stages"][stage.stage]
        origin = Text("cached", style="cyan") if entry["cached"] else Text("run", style="green")
        table.add_row(Text(stage.stage), formats.duration(entry["seconds"]), origin, Text(stage.headline))
    return table


def headline(summary: Mapping[str, Any], figure: str = "pass rate") -> Text:
    """Return the metric of both policies with its intervals, and the gain, as one line."""
    gain = f"{100 * summary['gain_low']:+.1f} to {100 * summary['gain_high']:+.1f}"
    return Text.assemble(
        f"{figure:11} ",
        (formats.percent(summary["before"]), "bold"),
        f" ({_format_bounds(summary, 'before')}) -> ",
        (formats.percent(summary["after"]), "bold green" if summary["gain"] > 0 else "bold red"),
        f" ({_format_bounds(summary, 'after')}), gain ",
        (formats.points(summary["gain"]), "bold"),
        f" ({gain}, 95%)",
    )


def _format_bounds(summary: Mapping[str, Any], policy: str) -> str:
    return f"{100 * summary[f'{policy}_low']:.1f} to {100 * summary[f'{policy}_high']:.1f}"


def _describe_verdict(summary: Mapping[str, Any]) -> str:
    if summary["gain_low"] > 0:
        return "the gain's interval lies above zero"
    if summary["gain_high"] < 0:
        return "the gain's interval lies below zero"
    return "the gain's interval includes zero"
