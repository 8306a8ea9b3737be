"""Plays the episodes of a run: an actor generates the policy's turns, and the reward client scores for environments.

While the environment of an episode works, the episode does not count as load of its slot: the actor is given other
samples. All turns of an episode go to the same actor, which has its prefix in the KV cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from tasks.environments.episode import EpisodePlayer, EpisodeRequest, GenerateTurn, Observer
from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion
from tasks.tables.schemas import Message
from tasks.training.actors.rewards import RewardClient, judge_text
from tasks.training.actors.slot import ActorSlot
from tasks.training.groups.group import Prompt, Sample
from tasks.verifiers import Score
from tasks.verifiers.code.running import Execution


@dataclass(frozen=True)
class Episode:
    """A request for an episode.

    Attributes:
        prompt: its prompt, which has an environment.
        sampling: sampling options. `max_tokens` limits all tokens of the episode together.
        seed: seed of the policy's turns. Optional. If None, the engine's random stream is used.
        group: number of the group, or -1 for a validation.
        index: number of the sample within the group.
        recorded: the turns before the episode was interrupted.
    """

    prompt: Prompt
    sampling: SamplingConfig
    seed: int | None
    group: int
    index: int
    recorded: Completion | None = None


class Episodes(Protocol):
    """The fleet's interface to the player of a run's episodes."""

    async def play(self, episode: Episode, generate: GenerateTurn, observer: Observer) -> Completion:
        """Play an episode whose turns `generate` samples. Only exceptions of `generate` propagate."""

    async def aclose(self) -> None:
        """End the processes of environments."""


class RunEpisodes:
    """Plays the episodes of a run, with environments in processes on this machine and the run's reward client."""

    def __init__(self, player: EpisodePlayer, judge: RewardClient) -> None:
        self._player = player
        self._judge = judge

    async def play(self, episode: Episode, generate: GenerateTurn, observer: Observer) -> Completion:
        """Play an episode (`Episodes.play`)."""
        prompt = episode.prompt
        assert prompt.environment is not None

        request = EpisodeRequest(
            prompt.environment,
            prompt.prompt_id,
            prompt.messages,
            prompt.token_ids,
            episode.index,
            episode.sampling,
            episode.seed,
            episode.group,
        )
        return await self._player.play(request, generate, _Services(self._judge, prompt), observer, episode.recorded)

    async def aclose(self) -> None:
        """End the processes of environments."""
        await self._player.aclose()


@dataclass(frozen=True)
class _Services:
    """The run's verifiers and sandbox, as the environment of one prompt uses them (`Services`)."""

    client: RewardClient
    prompt: Prompt

    async def judge(self, text: str, earlier: list[Message]) -> Score:
        return await judge_text(self.client, self.prompt, text, earlier)

    async def run_program(self, program: str, output_chars: int) -> Execution:
        return await self.client.run_program(program, output_chars)


class SlotObserver:
    """An observer that takes an episode off the slot's load while its environment works, and records its turns.

    It measures the time that the environment takes, including waits for a process, a score or the sandbox.
    """

    def __init__(self, slot: ActorSlot, freed: Callable[[], None], sample: Sample | None = None) -> None:
        """Create the observer of one episode.

        Args:
            slot: the slot whose actor generates the policy's turns.
            freed: called when the slot has capacity for another sample.
            sample: the sample whose turns and seconds are recorded, or None in a validation.
        """
        self._slot = slot
        self._freed = freed
        self._sample = sample
        self._clock = asyncio.get_running_loop().time
        self._busy_since: float | None = None
        self._seconds = 0.0

    def on_environment(self, *, busy: bool) -> None:
        """Take the episode off the slot's load, or put it back."""
        self._measure(busy=busy)
        if busy:
            self._slot.environments.add(self)
            self._freed()
        else:
            self._slot.environments.discard(self)

    def _measure(self, *, busy: bool) -> None:
        now = self._clock()
        if self._busy_since is not None:
            self._seconds += now - self._busy_since
        self._busy_since = now if busy else None
        if self._sample is not None:
            self._sample.environment_seconds = self._seconds

    def on_turn(self, so_far: Completion) -> None:
        """Record the turns so far, for another actor or a resumed run."""
        if self._sample is not None:
            self._sample.recorded = so_far
