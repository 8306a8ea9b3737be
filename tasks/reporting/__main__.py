"""`python -m tasks.reporting trace PROMPT_ID`: what a run made of one prompt."""

from __future__ import annotations

from pathlib import Path

import click

from tasks.failures import MistakeError
from tasks.reporting.trace import TraceError, find, find_row, told


@click.group()
def main() -> None:
    """Questions about a run that has ended."""


@main.command()
@click.argument("prompt_id", required=False)
@click.option("--source", help="In the place of an id: the prompt's source, with --row.")
@click.option("--row", type=click.IntRange(min=0), help="Its row there, counted from 0.")
@click.option("--run", default="outputs/latest", show_default=True, type=click.Path(path_type=Path))
def trace(prompt_id: str | None, source: str | None, row: int | None, run: Path) -> None:
    """What became of a prompt, named by its id or the beginning of it, or of a row of a source."""
    if prompt_id:
        life = find(run, prompt_id)
    elif source and row is not None:
        life = find_row(run, source, row)
    else:
        raise TraceError("name a prompt by its id, or by --source and --row")
    for line in told(life):
        click.echo(line)


if __name__ == "__main__":
    try:
        main()
    except MistakeError as mistake:
        raise SystemExit(f"Error: {mistake}") from None
