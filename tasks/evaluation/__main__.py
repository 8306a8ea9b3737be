"""Shows what policies answered, and compares runs: the commands `python -m tasks.evaluation show` and `compare`.

python -m tasks.evaluation show [RUN] [--benchmark NAME] [--flipped [better|worse]]
python -m tasks.evaluation compare RUN RUN...
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tasks.config import must_be_one_of
from tasks.evaluation.questions import Flip, Question, lines, questions
from tasks.evaluation.runs import benchmark_options, compare_runs, further_metrics, options_of
from tasks.excerpts.texts import printable
from tasks.failures import MistakeError
from tasks.lineage.differences import differences
from tasks.machine.error_report import run_command
from tasks.tables.schemas import AFTER, BEFORE, HELDOUT
from tasks.tables.single_domain import without_repeats
from tasks.tables.truncation import truncation_warnings

if TYPE_CHECKING:
    from rich.table import Table

WIDE = 10_000
"""Maximum width of the table. A name that is wrapped or cut could not be copied."""


@click.group()
def main() -> None:
    """Inspect the evaluations of runs."""


@main.command()
@click.argument("run", default="outputs/latest", type=click.Path(path_type=Path))
@click.option("--benchmark", default=HELDOUT, show_default=True, help="Name of the benchmark.")
@click.option("--policies", nargs=2, default=(BEFORE, AFTER), show_default=True, help="The two policies to show.")
@click.option(
    "--flipped",
    type=click.Choice(["better", "worse", "any"]),
    is_flag=False,
    flag_value="any",
    help="Only questions whose pass rate changed from the first policy to the second, or changed so.  [default: any]",
)
@click.option(
    "--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Maximum number of questions to print."
)
def show(run: Path, benchmark: str, policies: tuple[str, str], flipped: Flip | None, limit: int) -> None:
    """Print the questions of a benchmark in RUN with a response of each policy, and how many of them pass."""
    asked = questions(run, benchmark)
    _check(asked, policies)
    chosen = [question for question in asked if flipped is None or question.flips(policies, flipped)]
    for question in islice(chosen, limit):
        for line in lines(question, policies):
            click.echo(printable(line))
    changed = {flip: sum(question.flips(policies, flip) for question in asked) for flip in ("better", "worse")}
    click.echo(
        f"{len(asked):,} questions, of {policies[1]} against {policies[0]} {changed['better']:,} better and "
        f"{changed['worse']:,} worse; {min(limit, len(chosen)):,} of {len(chosen):,} shown"
    )
    page = run / "benchmarks" / f"{benchmark}.html"
    if page.is_file():
        click.echo(f"page        {page}")


@main.command()
@click.argument("runs", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--policy", default=AFTER, show_default=True, help="The policy of each run to compare.")
def compare(runs: tuple[Path, ...], policy: str) -> None:
    """Print the options that differ between RUNS, and the metrics of their policies on the prompts they share.

    Differences are from the first run, with 95% intervals, p-values corrected for the number of benchmarks and runs,
    and the smallest difference that the prompts and their samples detect with a chance of 80%. Margins, the k of
    majority@k and win rate data are taken from the first run that evaluated a benchmark.
    """
    from rich.console import Console

    if len(runs) < 2:
        raise MistakeError("name two runs or more, such as outputs/20261126-101500-3f2a outputs/latest")
    shared = benchmark_options(runs)
    evaluation = compare_runs(runs, policy, shared.benchmarks)
    once = replace(evaluation, table=without_repeats(evaluation.table))
    for run, options in zip(runs, differences([options_of(run) for run in runs]), strict=True):
        click.echo(f"{run.resolve().name}  {', '.join(options) or 'no option differs, or none is known'}")
    for message in shared.messages:
        click.echo(message)
    with_margins = any(benchmark.margin is not None for benchmark in shared.benchmarks)
    printed = _table("benchmark", "run", "pass rate", "difference, points", "p", "detectable", "prompts")
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
    Console(width=WIDE).print(printed)
    if further := further_metrics(once):
        _print_further(further)
    for message in truncation_warnings(evaluation.table):
        click.echo(f"warning     {message}")


def _table(*columns: str) -> Table:
    """Return a table whose columns of numbers are aligned to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, justify="left" if name in ("benchmark", "metric", "run") else "right")
    return table


def _print_further(rows: Sequence[Mapping[str, Any]]) -> None:
    """Print the rows of `further_metrics`."""
    from rich.console import Console

    printed = _table("benchmark", "metric", "run", "value", "difference", "prompts")
    for row in rows:
        value, difference = row["row"], row["difference"]
        is_first = difference is None
        cells = (row["benchmark"], row["metric"]) if is_first else ("", "")
        interval = "" if is_first else "{value:+.3f} ({low:+.3f} to {high:+.3f})".format(**difference)
        printed.add_row(*cells, row["policy"], f"{value['value']:.3f}", interval, f"{value['n']:,}" if is_first else "")
    console = Console(width=WIDE)
    console.print()
    console.print(printed)


def _check(asked: list[Question], policies: tuple[str, str]) -> None:
    known = {policy for question in asked for policy in question.responses}
    for policy in policies:
        must_be_one_of(policy, known, "--policies", "policy")


if __name__ == "__main__":
    run_command(main)
