"""Checks files against each other: `rlvr check`."""

from __future__ import annotations

import click

from tasks.commands.options import SpecFile


@click.command()
@click.argument("files", nargs=-1, required=True, metavar="FILE...", type=SpecFile("training"))
def check(files: tuple[str, ...]) -> None:
    """Check FILES against each other, without a run.

    FILES are a recipe, a data and an evaluation file, or experiments. A recipe is checked with the files that it names,
    unless others are given. Sources are opened, and your functions are called on their first rows.
    """
    from tasks.inputs.checking import check_files

    for line in check_files(files):
        click.echo(line)
