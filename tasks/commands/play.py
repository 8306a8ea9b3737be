"""Plays the environments of a data file without a model: `rlvr play`.

Each environment runs in a separate process, as in every stage, on the first usable row of its source. The policy says
the given turns, one after the other, and the dummy turns of preflight if none is given.
"""

from __future__ import annotations

import click

from tasks.commands.options import SpecFile


@click.command()
@click.argument("file", type=SpecFile("data"))
@click.argument("turns", nargs=-1)
def play(file: str, turns: tuple[str, ...]) -> None:
    """Play the environments of the data file FILE without a model.

    The policy says TURNS, one after the other.
    """
    from tasks.config.loading import parse
    from tasks.inputs.environments import TURNS
    from tasks.inputs.files import DataFile
    from tasks.inputs.play_environment import format_lines, play_episodes

    for name, completion in play_episodes(parse(DataFile, file), turns or TURNS):
        click.echo(name)
        for line in format_lines(completion):
            click.echo(line)
