"""Implements the command `python -m tasks.reporting trace PROMPT_ID`, which prints the history of a prompt in a run."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.excerpts.texts import printable
from tasks.machine.error_report import run_command
from tasks.reporting.trace import TraceError, find, find_row, lines


@click.group()
def main() -> None:
    """Inspect a run that has ended."""


@main.command()
@click.argument("prompt_id", required=False)
@click.option("--source", help="The prompt's source, with --row, instead of an id.")
@click.option("--row", type=click.IntRange(min=0), help="Its row in the source, counted from 0.")
@click.option("--run", default="outputs/latest", show_default=True, type=click.Path(path_type=Path))
def trace(prompt_id: str | None, source: str | None, row: int | None, run: Path) -> None:
    """Print the history of a prompt, given the beginning of its id, or its source and row."""
    if prompt_id:
        history = find(run, prompt_id)
    elif source and row is not None:
        history = find_row(run, source, row)
    else:
        raise TraceError("name a prompt by its id, or by --source and --row")
    for line in lines(history):
        click.echo(printable(line))


if __name__ == "__main__":
    run_command(main)
