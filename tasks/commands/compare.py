"""Compares runs: `rlvr compare`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from tasks.commands.options import Run
from tasks.commands.tables import print_table, table_of
from tasks.failures import MistakeError
from tasks.tables.schemas import AFTER


@click.command()
@click.argument("runs", nargs=-1, required=True, type=Run())
@click.option("--policy", default=AFTER, show_default=True, help="The policy of each run to compare.")
def compare(runs: tuple[Path, ...], policy: str) -> None:
    """Compare the options and results of RUNS.

    Metrics of their policies are compared on the prompts that they share. Differences are from the first run, with 95%
    intervals, p-values corrected for the number of benchmarks and runs, and the smallest difference that the prompts
    and their samples detect with a chance of 80%. Margins, the k of majority@k and win rate data are taken from the
    first run that evaluated a benchmark.
    """
    from tasks.evaluation.runs import compare_runs, read_benchmark_options, read_options, select_further_metrics
    from tasks.lineage.differences import find_differences
    from tasks.tables.single_domain import drop_repeats
    from tasks.tables.truncation import format_truncation_warnings

    if len(runs) < 2:
        raise MistakeError("name two runs or more, such as outputs/20261126-101500-3f2a outputs/latest")
    shared = read_benchmark_options(runs)
    evaluation = compare_runs(runs, policy, shared.benchmarks)
    once = replace(evaluation, table=drop_repeats(evaluation.table))
    for run, options in zip(runs, find_differences([read_options(run) for run in runs]), strict=True):
        click.echo(f"{run.resolve().name}  {', '.join(options) or 'no option differs, or none is known'}")
    for message in shared.messages:
        click.echo(message)
    with_margins = any(benchmark.margin is not None for benchmark in shared.benchmarks)
    printed = table_of(["benchmark", "run"], ["pass rate", "difference, points", "p", "detectable", "prompts"])
    if with_margins:
        printed.add_column("maintained")
    shown = set(once.table["benchmark"].to_pylist())
    for (name, first), comparisons in evaluation.comparisons.items():
        for benchmark, compared in ((one, compared) for one, compared in comparisons.items() if one in shown):
            difference = (
                f"{100 * compared.gain:+.1f} ({100 * compared.gain_low:+.1f} to {100 * compared.gain_high:+.1f})"
            )
            p_value = compared.p_value if compared.adjusted_p_value is None else compared.adjusted_p_value
            printed.add_row(benchmark, first, f"{compared.baseline_rate:.1%}", "", "", "", f"{compared.n:,}")
            maintained = {None: "", True: "yes", False: "not shown"}[compared.maintained]
            power = "-" if compared.detectable is None else f"{100 * compared.detectable:.1f}"
            cells = ("", name, f"{compared.rate:.1%}", difference, f"{p_value:.2g}", power, "")
            printed.add_row(*cells, *([maintained] if with_margins else []))
    print_table(printed)
    if further := select_further_metrics(once):
        _print_further(further)
    for message in format_truncation_warnings(evaluation.table):
        click.echo(f"warning     {message}")


def _print_further(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of `select_further_metrics`."""
    printed = table_of(["benchmark", "metric", "run"], ["value", "difference", "prompts"])
    for row in rows:
        value, difference = row["row"], row["difference"]
        is_first = difference is None
        cells = (row["benchmark"], row["metric"]) if is_first else ("", "")
        interval = "" if is_first else "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**difference)
        printed.add_row(*cells, row["policy"], f"{value['value']:.3f}", interval, f"{value['n']:,}" if is_first else "")
    click.echo()
    print_table(printed)
