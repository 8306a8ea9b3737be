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

QUESTIONS = 20
"""Maximum number of questions that are printed if the user names none."""


@click.command()
@click.argument("run", default=LATEST, type=Run())
@click.option("--benchmark", default=HELDOUT, show_default=True, help="Name of the benchmark.")
@click.option("--policies", nargs=2, default=(BEFORE, AFTER), show_default=True, help="The two policies to show.")
@click.option(
    "--flipped",
    type=click.Choice(["better", "worse", "any"]),
    is_flag=False,
    flag_value="any",
    help="Only questions whose pass rate rose from the first policy to the second (better), fell (worse), or either "
    "(any, or no value). Without this option, all questions.",
)
@click.option(
    "--worst",
    type=click.IntRange(min=1),
    metavar="N",
    help="Instead of questions, the N responses of the second policy with the lowest scores.",
)
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    help=f"Maximum number of questions to print.  [default: {QUESTIONS}]",
)
def show(
    run: Path, benchmark: str, policies: tuple[str, str], flipped: Flip | None, worst: int | None, limit: int | None
) -> None:
    """Print questions of a benchmark in RUN, with responses.

    Each question has its source and row, and of each policy the number of responses that pass, and one of them: the
    first with the verdict of most. The last line has the number of questions whose pass rate changed.
    """
    from tasks.evaluation.questions import format_question, read_questions
    from tasks.excerpts.texts import make_printable

    if worst is not None and limit is not None:
        raise click.UsageError("--worst is a number of responses, --limit one of questions: give one of them")

    asked = read_questions(run, benchmark)
    _check(asked, policies)
    chosen = [question for question in asked if flipped is None or question.has_flip(policies, flipped)]
    if worst is not None:
        _show_worst(chosen, policies[1], worst)
        return
    limit = limit or QUESTIONS
    for question in islice(chosen, limit):
        for line in format_question(question, policies):
            click.echo(make_printable(line))
    better, worse = (sum(question.has_flip(policies, flip) for question in asked) for flip in ("better", "worse"))
    click.echo(
        f"{len(asked):,} questions, of {policies[1]} against {policies[0]} {better:,} better and {worse:,} worse; "
        f"{min(limit, len(chosen)):,} of {len(chosen):,} shown"
    )


def _show_worst(chosen: Sequence[Question], policy: str, count: int) -> None:
    from tasks.evaluation.questions import format_response, worst
    from tasks.excerpts.texts import make_printable

    scored = worst(chosen, policy)
    for question, row in scored[:count]:
        for line in format_response(question, row):
            click.echo(make_printable(line))
    unscored = sum(len(question.responses.get(policy, ())) for question in chosen) - len(scored)
    click.echo(
        f"{min(count, len(scored)):,} of {len(scored):,} scored responses of {policy} shown, lowest scores first; "
        f"{unscored:,} could not be scored"
    )


def _check(asked: Sequence[Question], policies: tuple[str, str]) -> None:
    from tasks.config.loading import check_choice

    known = {policy for question in asked for policy in question.responses}
    for policy in policies:
        check_choice(policy, known, "--policies", "policy")
