"""Runs the environment of a source on its first row with dummy turns, before anything is sampled.

An environment runs in a separate process, as in every stage. Only the policy's turns are dummies. A policy could say
any of them, but an environment may have good reason to reject one, so a source is only refused if all episodes fail.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from typing import Any

import numpy as np

from tasks.config import SpecError
from tasks.environments.episode import EpisodePlayer, EpisodeRequest
from tasks.environments.sessions import EnvironmentPool
from tasks.environments.spec import EnvironmentSpec
from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion
from tasks.inputs.files import DataFile
from tasks.sourcing import loaders
from tasks.sourcing.files import Malformed
from tasks.sourcing.ground_truths import environment_of
from tasks.sourcing.messages import chat_from
from tasks.sourcing.spec import SourceSpec
from tasks.sourcing.values import UnusableError
from tasks.verifiers import Score
from tasks.verifiers.code.running import Execution
from tasks.verifiers.scores import CannotJudge

logger = logging.getLogger(__name__)

TURNS = ("42", "I do not know.", "```python\nprint(42)\n```")
"""The dummy turns. Each episode begins with a different one."""


def check_environment(source: SourceSpec, rows: list[loaders.Row], data: DataFile) -> None:
    """Run the environment of a source, if it has one, on its first usable row.

    Args:
        source: the source.
        rows: its first rows.
        data: the data file, for its name and the limits of processes.

    Raises:
        SpecError: the environment fails in every episode. The message contains its name, the exception and the line.
    """
    if source.environment is None:
        return
    where = f"{data.name}: source {source.name!r}"
    try:
        played = _first(source, rows)
    except CannotJudge as reason:
        raise SpecError(f"{where}: {reason}") from None
    if played is None:
        return
    completions = asyncio.run(_play(*played, data))
    errors = [end.error for completion in completions if (end := completion.end) is not None and end.error is not None]
    if len(errors) == len(completions):
        raise SpecError(f"{where}: {errors[0]}; it fails like this in each of {len(errors)} dummy episodes")
    if errors:
        logger.warning("%s: %s; it fails like this in one dummy episode, not in others", where, errors[0])


def _first(source: SourceSpec, rows: list[loaders.Row]) -> tuple[EnvironmentSpec, Sequence[Mapping[str, str]]] | None:
    for row in rows:
        if isinstance(row.content, Malformed):
            continue
        try:
            spec = EnvironmentSpec.from_json(environment_of(row.content, source))
            messages = chat_from(row.content, source.columns, "", "").messages
        except (UnusableError, TypeError, ValueError):
            continue
        assert spec is not None
        return spec, messages
    return None


async def _play(spec: EnvironmentSpec, messages: Sequence[Mapping[str, str]], data: DataFile) -> list[Completion]:
    spec = replace(spec, tool_parser=None)  # a tool parser needs the policy's tokenizer, which preflight's pod lacks
    player = EpisodePlayer(EnvironmentPool(data.verifiers.environments), _NoTemplate())
    try:
        return [
            await player.play(
                EpisodeRequest(spec, "made up", messages, [0], sample, SamplingConfig(max_tokens=1 << 20), None),
                _Speaker(TURNS[sample:] + TURNS[:sample]).generate,
                _NoServices(),
            )
            for sample in range(len(TURNS))
        ]
    finally:
        await player.aclose()


class _NoTemplate:
    """A chat template without tokens."""

    @property
    def control_tokens(self) -> Sequence[str]:
        """Return no tokens."""
        return ()

    def may_fit(self, messages: Sequence[Mapping[str, str]], tokens: int) -> bool:
        """Return True."""
        return True

    def inserted(self, messages: Sequence[Mapping[str, str]], last_token: int) -> list[int]:
        """Return one token in place of the messages."""
        return [0]

    def begun(self, messages: Sequence[Mapping[str, str]], tools: Sequence[Mapping[str, Any]]) -> list[int]:
        """Return one token in place of the conversation."""
        return [0]


class _Speaker:
    """A policy that says the dummy turns one after the other."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = cycle(texts)

    async def generate(self, token_ids: list[int], sampling: SamplingConfig, seed: int | None) -> Completion:
        """Return the next turn."""
        return Completion(next(self._texts), np.zeros(1, np.int32), np.zeros(1, np.float32), "stop", [])


class _NoServices:
    """Dummy services: every score is 0, and programs have no output."""

    async def judge(self, text: str, earlier: list[dict[str, str]]) -> Score:
        """Return a score of 0."""
        return Score.binary(False, "a dummy turn")

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Return no output."""
        return Execution("")
