"""Prints the history of a prompt in a run: `rlvr trace`."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.commands.options import LATEST, Run


@click.command()
@click.argument("prompt_id", required=False)
@click.option("--source", help="The prompt's source, with --row, instead of an id.")
@click.option("--row", type=click.IntRange(min=0), help="Its row in the source, counted from 0.")
@click.option("--run", default=LATEST, show_default=True, type=Run())
def trace(prompt_id: str | None, source: str | None, row: int | None, run: Path) -> None:
    """Print the history of a prompt, by its id or its row.

    The beginning of the id is enough.
    """
    from tasks.excerpts.texts import make_printable
    from tasks.reporting.trace import TraceError, find, find_row, format_lines

    if prompt_id:
        history = find(run, prompt_id)
    elif source and row is not None:
        history = find_row(run, source, row)
    else:
        raise TraceError("name a prompt by its id, or by --source and --row")
    for line in format_lines(history):
        click.echo(make_printable(line))
