"""Connects the episodes of a run to its actors and verifiers: what environments may request, and the load of a slot.

While the environment of an episode works, the episode does not count as load of its slot: the actor is given other
samples. All turns of an episode go to the same actor, which has its prefix in the KV cache.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from tasks.generation.interface import Completion
from tasks.tables.schemas import Message
from tasks.training.actors.rewards import RewardClient, judge_text
from tasks.training.actors.slot import ActorSlot
from tasks.training.groups.group import Prompt, Sample
from tasks.verifiers import Score
from tasks.verifiers.code.running import Execution


@dataclass(frozen=True)
class RunServices:
    """The run's verifiers and sandbox, as the environment of one prompt uses them (`Services`)."""

    client: RewardClient
    prompt: Prompt

    async def judge(self, text: str, earlier: list[Message]) -> Score:
        """Score a text with the prompt's verifier."""
        return await judge_text(self.client, self.prompt, text, earlier)

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox."""
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
