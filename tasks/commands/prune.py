"""Removes files of local runs that nothing needs: `rlvr prune`."""

from __future__ import annotations

import time

import click


@click.command()
@click.option(
    "--older-than",
    "days",
    metavar="DAYS",
    type=click.FloatRange(min=0),
    default=7.0,
    show_default=True,
    help="Remove outputs of runs that nothing has used for this number of days.",
)
@click.option("--run", "names", metavar="NAME", multiple=True, help="A run in outputs/runs to remove in any case.")
@click.option("--yes", is_flag=True, help="Remove what is printed.")
def prune(days: float, names: tuple[str, ...], yes: bool) -> None:
    """Print what can be removed from outputs/, or remove it.

    Leftovers of killed processes are removed regardless of their age. An interrupted run is kept until it is named, and
    so is everything it may need to resume. Results that are removed from the cache are computed again if needed.
    """
    from tasks.commands.pruning import Plan
    from tasks.reporting.index import write_index
    from tasks.storage.locations import outputs_folder
    from tasks.storage.outputs import format_size, require_idle

    with require_idle():
        plan = Plan(time.time() - days * 24 * 3600, names)
        click.echo("\n".join(plan.lines()))
        freed = plan.remove() if yes else 0
        if yes and (page := outputs_folder() / "index.html").is_file():
            write_index(page.parent)
    click.echo("".join(f"\n{sentence}" for sentence in plan.sentences), nl=bool(plan.sentences))
    if plan.going:
        click.echo(f"\n{format_size(freed)} are free now" if yes else "\n--yes removes this")
