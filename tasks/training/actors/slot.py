"""The place of one actor: what is known of who is in it."""

from __future__ import annotations

import asyncio
import sys
from collections import deque

from tasks.generation.interface import Completion, EngineStatistics
from tasks.training.actors.concurrency import Concurrency
from tasks.training.actors.process import Actor
from tasks.training.config import ActorsConfig
from tasks.training.groups.group import Group, Sample

LONGEST_BACK_OFF = 60.0
"""Seconds."""


class ActorSlot:
    """The place of one actor: who is in it, and what that generates.

    Attributes:
        placed: whether its actor has found room in the cluster.
        held: version of the weights that its actor holds; None while nobody serves here.
        running: what is being generated, and the call that waits for it.
        apart: responses that are being generated and belong to no sample of training.
        updating: whether its actor is taking new weights.
        free: set unless its actor is to keep the weights that it has.
        reserved: whether it is for a suspect group, and takes nothing else.
        suspect: the suspect group that it generates for.
        resting: why it stays empty for a while; empty where it does not.
        concurrency: sequences that its engine is given at a time; those beyond wait in the engine.
    """

    def __init__(self, index: int, actors: ActorsConfig) -> None:
        self.index = index
        self.concurrency = Concurrency(actors.engine.max_num_seqs, actors.min_num_seqs)
        self._in_stock = sys.maxsize // 2 if actors.updates == "static" else actors.prefetch
        self.actor: Actor | None = None
        self.placed = False
        self.held: int | None = None
        self.running: dict[Sample, asyncio.Task[None]] = {}
        self.apart: set[asyncio.Task[Completion]] = set()
        self.updating = False
        self.free = asyncio.Event()
        self.free.set()
        self.reserved = False
        self.suspect: Group | None = None
        self.attempts = 0
        self._lost_at: deque[float] = deque()
        self._budget = actors.max_restarts, actors.restart_window_seconds
        self.resting = ""
        self.statistics = EngineStatistics()
        self.preemptions = 0
        self.idle = asyncio.Event()
        self.idle.set()
        self.idle_seconds = 0.0
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._loop.time()
        self.broken: asyncio.Future[None] = self._loop.create_future()

    @property
    def serves(self) -> bool:
        """Whether its actor can be given samples, for all that it knows itself."""
        return self.held is not None and not self.broken.done()

    @property
    def starts(self) -> bool:
        """Whether its actor will serve soon."""
        return self.placed and not self.serves and not self.resting

    def lose(self, reason: str) -> None:
        """Its actor was lost."""
        self._lost_at.append(self._loop.time())
        self.resting = f"was lost ({reason})"

    @property
    def losses(self) -> int:
        """Of its actors, within `actors.restart_window_seconds`."""
        while self._lost_at and self.until_one_is_over() < 0:
            self._lost_at.popleft()
        return len(self._lost_at)

    def until_one_is_over(self) -> float:
        """Seconds until the first of its losses counts no more."""
        return self._lost_at[0] + self._budget[1] - self._loop.time()

    @property
    def is_over_budget(self) -> bool:
        """Whether it is empty, and has lost more actors than it may."""
        return self.actor is None and self.losses > self._budget[0]

    @property
    def back_off(self) -> float:
        """Seconds until its next actor: 0 after the first loss, then 1, 2, 4; over its budget, until one is over."""
        if self.is_over_budget:
            return self.until_one_is_over()
        return min(2.0 ** (self.losses - 2), LONGEST_BACK_OFF) if self.losses > 1 else 0.0

    @property
    def keeps_out(self) -> bool:
        """Whether it has no use for responses that are no samples of training."""
        return self.updating or self.reserved or not self.serves

    @property
    def load(self) -> int:
        """Responses that it has to generate."""
        return len(self.running) + len(self.apart)

    @property
    def room(self) -> int:
        """Samples that it can be given on top."""
        return self.concurrency.limit + self._in_stock - self.load if self.serves else 0

    def begin(self) -> None:
        """It is given something to generate."""
        if self.idle.is_set():
            self.count_idle()
            self.idle.clear()

    def end(self) -> None:
        """It has nothing to generate any more."""
        if not self.idle.is_set():
            self._idle_since = self._loop.time()
            self.idle.set()

    def is_idle(self) -> None:
        """It has nothing of training to generate any more: a suspect group has had its turn."""
        if self.suspect:
            self.reserved, self.suspect = False, None
        if not self.load:
            self.end()

    def count_idle(self) -> None:
        """Bring `idle_seconds` up to now."""
        now = self._loop.time()
        if self.idle.is_set():
            self.idle_seconds += now - self._idle_since
        self._idle_since = now

    def observe(self, statistics: EngineStatistics) -> None:
        """What its engine says of itself; one that was replaced counts from 0."""
        preempted = max(statistics.preemptions - self.statistics.preemptions, 0)
        self.preemptions += preempted
        self.concurrency.observe(statistics.running, statistics.kv_cache_usage, preempted)
        self.statistics = statistics

    @property
    def state(self) -> str:
        """How it stands, for a message."""
        if self.resting:
            return self.resting
        if self.serves:
            return f"generates {self.load} samples"
        return "is starting" if self.placed else "waits for room in the cluster"
