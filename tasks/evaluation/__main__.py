"""The command `python -m tasks.evaluation show RUN`: prints a benchmark's questions with the policies' responses."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import click

from tasks.config import must_be_one_of
from tasks.evaluation.questions import Flip, Question, lines, questions
from tasks.machine.error_report import run_command
from tasks.tables.schemas import AFTER, BEFORE, HELDOUT


@click.group()
def main() -> None:
    """Look into the evaluation of a run."""


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
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="Questions to print at most.")
def show(run: Path, benchmark: str, policies: tuple[str, str], flipped: Flip | None, limit: int) -> None:
    """Print the questions of a benchmark in RUN with a response of each policy, and how many of them pass."""
    asked = questions(run, benchmark)
    _check(asked, policies)
    chosen = [question for question in asked if flipped is None or question.flips(policies, flipped)]
    for question in islice(chosen, limit):
        for line in lines(question, policies):
            click.echo(line)
    changed = {flip: sum(question.flips(policies, flip) for question in asked) for flip in ("better", "worse")}
    click.echo(
        f"{len(asked):,} questions, of {policies[1]} against {policies[0]} {changed['better']:,} better and "
        f"{changed['worse']:,} worse; {min(limit, len(chosen)):,} of {len(chosen):,} shown"
    )


def _check(asked: list[Question], policies: tuple[str, str]) -> None:
    known = {policy for question in asked for policy in question.responses}
    for policy in policies:
        must_be_one_of(policy, known, "--policies", "policy")


if __name__ == "__main__":
    run_command(main)
