"""Plays the environments of a data file without a model, as `rlvr play` does.

Each environment runs in a separate process, as in every stage, on the first usable row of its source. The policy says
the given turns, one after the other, and the dummy turns of preflight if none is given.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from tasks.config.loading import SpecError
from tasks.excerpts.episodes import ShownEpisode
from tasks.generation.interface import Completion
from tasks.inputs.environments import find_first_row, play
from tasks.inputs.files import DataFile
from tasks.rollouts.episodes import episode_columns
from tasks.sourcing import loaders
from tasks.verifiers.scores import CannotJudge


def play_episodes(data: DataFile, turns: Sequence[str]) -> list[tuple[str, Completion]]:
    """Return one episode of each source with an environment, by the source's name.

    Raises:
        SpecError: no source has an environment, or a source has no usable row, or its environment cannot be imported.
    """
    sources = [source for source in data.used_sources if source.environment is not None]
    if not sources:
        raise SpecError(f"{data.name}: no source has an environment to play")
    episodes = []
    for source in sources:
        where = f"{data.name}: source {source.name!r}"
        try:
            row = find_first_row(source, loaders.check(source))
        except CannotJudge as reason:
            raise SpecError(f"{where}: {reason}") from None
        if row is None:
            raise SpecError(f"{where}: none of its first rows can be used, so there is no prompt to play")
        [completion] = asyncio.run(play(*row, data, [turns]))
        episodes.append((source.name, completion))
    return episodes


def format_lines(completion: Completion) -> list[str]:
    """Return the lines of an episode."""
    row = {**episode_columns(completion), "finish_reason": completion.finish_reason}
    shown = ShownEpisode.from_row(row)
    return [] if shown is None else list(shown.lines("  "))
