"""Implements time sharing of GPUs between engines and learner ranks (`placement: time_shared`).

    engines generate ──► the learner waits ──► each engine falls asleep ──► states to the GPUs, steps, new weights ─┐
          ▲                                                                                                         │
          └────────────── engines wake with the newest weights ◄── states to main memory ◄──────────────────────────┘

An engine is on its GPU from before it loads until it sleeps or its process has ended. The learner's turn begins when no
engine is on a GPU, and no engine enters before it ends: a lost engine is replaced in the engines' turn. So neither side
waits for the other longer than one engine takes to load or to take weights, and both of these have their own time
limits.
"""

from __future__ import annotations

import asyncio


class Turns:
    """Coordinates the time sharing of one run; the learner has the first turn.

    Without time sharing, neither side waits.

    Args:
        taken: whether engines and learner ranks use time sharing.

    Attributes:
        taken: the same.
    """

    def __init__(self, *, taken: bool = False) -> None:
        self.taken = taken
        self._on_gpus: set[int] = set()  # indices of the slots of engines on GPUs
        self._of_engines = asyncio.Event()
        self._of_learner = asyncio.Event()  # set if the learner has the turn, or waits for it
        self._all_left = asyncio.Event()
        (self._of_learner if taken else self._of_engines).set()

    # Called by the engines

    async def enter(self, index: int) -> None:
        """Wait for the engines' turn; the engine of slot `index` is on its GPU then, until `leave`."""
        await self._of_engines.wait()
        self._on_gpus.add(index)

    def leave(self, index: int) -> None:
        """Record that the engine of slot `index` sleeps, or that its process has ended."""
        self._on_gpus.discard(index)
        if not self._on_gpus:
            self._all_left.set()

    async def wait_until_wanted(self) -> None:
        """Wait until engines must leave their GPUs."""
        await self._of_learner.wait()

    # Called by the learner

    @property
    def are_learners(self) -> bool:
        """Return whether the learner has the turn or waits for it."""
        return self._of_learner.is_set()

    async def take(self) -> None:
        """Begin the learner's turn: return when no engine is on a GPU."""
        self._of_engines.clear()
        self._of_learner.set()
        while self._on_gpus:
            self._all_left.clear()
            await self._all_left.wait()

    def give(self) -> None:
        """End the learner's turn: engines may use their GPUs."""
        self._of_learner.clear()
        self._of_engines.set()
