"""Prints the responses of policies to the questions of a benchmark: `rlvr show`."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tasks.commands.options import LATEST, Run
from tasks.tables.schemas import AFTER, BEFORE, HELDOUT

if TYPE_CHECKING:
    from tasks.evaluation.questions import Flip, Question


@click.command()
@click.argument("run", default=LATEST, type=Run())
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
    """Print questions of a benchmark in RUN, with responses.

    Each question has a response of each policy, and the number of responses that pass. The last line has the number of
    questions whose pass rate changed.
    """
    from tasks.evaluation.questions import lines, questions
    from tasks.excerpts.texts import printable

    asked = questions(run, benchmark)
    _check(asked, policies)
    chosen = [question for question in asked if flipped is None or question.flips(policies, flipped)]
    for question in islice(chosen, limit):
        for line in lines(question, policies):
            click.echo(printable(line))
    better, worse = (sum(question.flips(policies, flip) for question in asked) for flip in ("better", "worse"))
    click.echo(
        f"{len(asked):,} questions, of {policies[1]} against {policies[0]} {better:,} better and {worse:,} worse; "
        f"{min(limit, len(chosen)):,} of {len(chosen):,} shown"
    )


def _check(asked: Sequence[Question], policies: tuple[str, str]) -> None:
    from tasks.config import must_be_one_of

    known = {policy for question in asked for policy in question.responses}
    for policy in policies:
        must_be_one_of(policy, known, "--policies", "policy")
