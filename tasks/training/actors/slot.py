"""Tracks the state of each actor slot of the fleet, and checks transitions between states.

    EMPTY ─► WAITING_FOR_RESOURCES ─► LOADING ─► UPDATING ◄─► SERVING ─► BROKEN
      │                ▲                            ▲            ▲
      └─► BACKING_OFF ─┘                            └─── ASLEEP ◄┘

LOADING leads directly to SERVING if the initial checkpoint is the newest policy. UPDATING and ASLEEP may lead to
BROKEN. Every state of an actor leads back to EMPTY, when the actor is removed.

The fleet changes the state only through methods of the slot. Three properties are stored separately because they are
independent of the state: a slot may be reserved for a suspect group, it may be pinned to its version of the policy by a
validation, and it may be idle, both while its actor serves and while it takes new weights.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Set
from enum import Enum

from tasks.generation.interface import Completion, EngineStatistics
from tasks.recipe.run import ActorsConfig
from tasks.training.actors.concurrency import Concurrency
from tasks.training.actors.decoding import Decoding
from tasks.training.actors.process import Actor
from tasks.training.groups.group import Group, Sample
from tasks.training.runtime.restart_budget import RestartBudget

MAX_BACK_OFF = 60.0
"""Longest pause in seconds before an actor is replaced, while the slot is within its restart budget."""


class SlotState(Enum):
    """Stage in the life of a slot's actor. The value follows "actor 3" in a message."""

    EMPTY = "has not been created"
    """There is no actor: before the first actor, and between the removal of an actor and the pause after it."""
    BACKING_OFF = "is replaced after a pause"
    """The last actor was lost, and the slot pauses before it creates another."""
    WAITING_FOR_RESOURCES = "waits for resources of the cluster"
    """An actor is created, but Ray does not have CPUs or GPUs for it yet."""
    LOADING = "loads its engine"
    """The actor has its resources, but its engine is not running yet."""
    UPDATING = "takes new weights"
    """The engine is running, and is loading the newest weights, either its first or to replace older weights."""
    SERVING = "generates"
    """The engine takes requests under the policy version `ActorSlot.version`."""
    ASLEEP = "sleeps while the learner has its GPU"
    """The engine keeps its requests, but generates nothing until it is woken (`placement: time_shared`)."""
    BROKEN = "has failed and is being removed"
    """A request failed because of the actor. It is given no more samples, and is removed next."""


_REMOVABLE = frozenset(SlotState) - {SlotState.EMPTY, SlotState.BACKING_OFF}
"""The states of a slot with an actor."""


class ActorSlot:
    """State of one actor slot: its current actor, load, policy version and restart budget.

    A slot outlives its actors. A lost actor is replaced by a new one in the same slot.

    Attributes:
        index: number of the slot, from 0.
        state: stage in the life of the current actor. Only methods of this class change it.
        actor: the current actor, or None until its engine runs.
        version: version of the policy that the actor generates with, or None until it first serves.
        attempts: number of actors that the slot has had so far.
        running: samples that are being generated, each with the task that waits for it.
        validation_calls: calls to the actor for validation responses, which belong to no training sample.
        environments: episodes whose environments are working, so that the actor has nothing to generate for them.
        unpinned: an event that is set unless a validation needs the actor to stay at its version.
        idle: an event that is set while the actor has nothing to generate.
        reserved: True if the slot takes no more samples until a suspect group has been generated on it alone.
        suspect: the group that is being generated on it alone, because actors died while they generated it.
        concurrency: limit on the number of sequences that the engine is given at a time. More would wait in the engine.
        statistics: the newest statistics of the engine.
        preemptions: requests that the engine preempted since the counter was last reset.
        idle_seconds: seconds asleep or without anything to generate since the counter was last reset, up to
            `count_idle`.
    """

    def __init__(self, index: int, actors: ActorsConfig) -> None:
        self.index = index
        self.state = SlotState.EMPTY
        self.actor: Actor | None = None
        self.version: int | None = None
        self.attempts = 0
        self.running: dict[Sample, asyncio.Task[None]] = {}
        self.validation_calls: set[asyncio.Task[Completion]] = set()
        self.environments: set[object] = set()
        self.unpinned = asyncio.Event()
        self.unpinned.set()
        self.idle = asyncio.Event()
        self.idle.set()
        self.reserved = False
        self.suspect: Group | None = None
        self.concurrency = Concurrency(actors.engine.max_num_seqs * actors.engine.replicas, actors.min_num_seqs)
        self.statistics = EngineStatistics()
        self.preemptions = 0
        self.idle_seconds = 0.0
        # a static batch is given to an engine whole, however many of its requests then wait in the engine
        self._prefetch = sys.maxsize // 2 if actors.updates == "static" else actors.prefetch
        self._losses = RestartBudget(actors.max_restarts, actors.restart_window_seconds)
        self._loss = ""  # why the last actor was lost; reset once its successor's engine runs
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._decoding = Decoding()
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._observed_at = self._loop.time()
        self._unobserved_idle = 0.0  # seconds of idleness since `_observed_at`

    # Transitions, in the order of an actor's life cycle

    def create(self) -> int:
        """Record that another actor is created. Return the number of actors that the slot had before."""
        self._move({SlotState.EMPTY, SlotState.BACKING_OFF}, SlotState.WAITING_FOR_RESOURCES)
        self.attempts += 1
        return self.attempts - 1

    def load(self) -> None:
        """Record that the actor has its resources in the cluster, and that its engine loads now."""
        self._move({SlotState.WAITING_FOR_RESOURCES}, SlotState.LOADING)

    def start(self, actor: Actor, version: int | None) -> None:
        """Record that the engine of `actor` runs. It serves `version`, or takes its first weights if that is None."""
        self._move({SlotState.LOADING}, SlotState.UPDATING if version is None else SlotState.SERVING)
        self.actor, self.version = actor, version
        # counted first: the period of the engine's first reading begins here, without idle time from before
        self.count_idle()
        self._observed_at, self._unobserved_idle = self._loop.time(), 0.0
        self._loss = ""
        self._failure = None
        self._failed.clear()

    def update(self) -> None:
        """Record that the actor begins to take new weights. A broken actor stays broken."""
        if self.state is not SlotState.BROKEN:
            self._move({SlotState.SERVING, SlotState.ASLEEP}, SlotState.UPDATING)

    def serve(self, version: int) -> None:
        """Record that the actor has taken the weights of policy `version`. A broken actor stays broken."""
        if self.state is not SlotState.BROKEN:
            self._move({SlotState.UPDATING}, SlotState.SERVING)
        self.version = version

    def sleep(self) -> None:
        """Record that the actor falls asleep. A broken actor stays broken."""
        if self.state is not SlotState.BROKEN:
            self._move({SlotState.SERVING}, SlotState.ASLEEP)

    def wake(self) -> None:
        """Record that the actor generates again, under the weights that it had. A broken actor stays broken."""
        if self.state is not SlotState.BROKEN:
            self._move({SlotState.ASLEEP}, SlotState.SERVING)

    def fail(self, actor: Actor, error: Exception) -> None:
        """Record that a request failed because of `actor`. Only the first failure of the current actor is kept."""
        # a late request of a replaced actor says nothing about its successor
        if self.actor is actor and self.state is not SlotState.BROKEN:
            self._move({SlotState.UPDATING, SlotState.SERVING, SlotState.ASLEEP}, SlotState.BROKEN)
            self._failure = error
            self._failed.set()

    async def failure(self) -> None:
        """Wait until the current actor is broken, and raise the error that `fail` recorded."""
        await self._failed.wait()
        assert self._failure is not None
        raise self._failure

    def empty(self) -> list[Sample]:
        """Remove the actor, cancel its requests, and return its unfinished samples."""
        self._move(_REMOVABLE, SlotState.EMPTY)
        # a cancelled validation call sees by `actor` that its actor was lost, and not that the run ends
        self.actor, self.version, self.statistics = None, None, EngineStatistics()
        self.reserved = False
        unfinished = list(self.running)
        for task in (*self.running.values(), *self.validation_calls):
            task.cancel()
        self.running.clear()
        self.validation_calls.clear()
        self.environments.clear()
        self.finish_training()
        return unfinished

    def back_off(self, reason: str) -> None:
        """Record that the removed actor was lost for `reason`. The slot pauses before it creates another."""
        self._move({SlotState.EMPTY}, SlotState.BACKING_OFF)
        self._losses.record(self._loop.time())
        self._loss = f"was lost ({reason})"

    def _move(self, before: Set[SlotState], after: SlotState) -> None:
        if self.state not in before:
            raise ValueError(f"slot {self.index} is {self.state.name}: it cannot become {after.name}")
        # sleep counts as idle time, so the time so far is counted before the state changes
        if SlotState.ASLEEP in (self.state, after):
            self.count_idle()
        self.state = after

    # Queries of the state

    @property
    def serves(self) -> bool:
        """Return whether the actor takes requests, possibly with older weights."""
        return self.version is not None and self.state is not SlotState.BROKEN

    @property
    def is_pending(self) -> bool:
        """Return whether a static batch should wait for this slot.

        It should wait while the slot's first engine loads, and for an actor that takes its first weights or is about to
        be removed. It should not wait for an engine that loads in place of a lost one.
        """
        match self.state:
            case SlotState.LOADING:
                return not self._loss
            case SlotState.UPDATING | SlotState.BROKEN:
                return not self.serves
            case _:
                return False

    @property
    def can_validate(self) -> bool:
        """Return whether a validation may pin the slot, which has to serve, take no new weights and not be reserved."""
        return self.state is SlotState.SERVING and not self.reserved

    @property
    def num_requests(self) -> int:
        """Number of responses that the actor has to generate now, including validation responses."""
        # an episode whose environment is working still has its call, but nothing to generate
        return len(self.running) + len(self.validation_calls) - len(self.environments)

    @property
    def free_capacity(self) -> int:
        """Number of samples that the actor can be given in addition to its current ones, or 0 if it does not serve."""
        return self.concurrency.limit + self._prefetch - self.num_requests if self.serves else 0

    @property
    def description(self) -> str:
        """State of the slot for a message, such as "generates 8 samples" in "actor 3 generates 8 samples"."""
        if self._loss:
            return self._loss
        generates = self.serves and self.state is not SlotState.ASLEEP
        return f"generates {self.num_requests} samples" if generates else self.state.value

    # The restart budget

    @property
    def is_over_budget(self) -> bool:
        """Return whether no engine runs, and more actors were lost than `actors.max_restarts` within the window."""
        return self.actor is None and self._losses.used(self._loop.time()) > self._losses.limit

    def explain_over_budget(self, limit: str) -> None:
        """Add to the reason of the actor's loss that its slot stays empty because the restart `limit` is reached."""
        self._loss = f"{self._loss}; it stays empty: {limit}"

    @property
    def back_off_seconds(self) -> float:
        """Pause before the next actor: 0 after the first loss, then 1, 2, 4, ... seconds, up to `MAX_BACK_OFF`.

        If the slot is over its budget, the pause lasts until the oldest loss leaves the window.
        """
        now = self._loop.time()
        if self.is_over_budget:
            return self._losses.compute_seconds_until_freed(now)
        losses = self._losses.used(now)
        return min(2.0 ** (losses - 2), MAX_BACK_OFF) if losses > 1 else 0.0

    # Load and idle time

    def begin_request(self) -> None:
        """Record that the actor is given something to generate."""
        if self.idle.is_set():
            self.count_idle()
            self.idle.clear()

    def finish_training(self) -> None:
        """Record that no training sample is left on the actor, so that a suspect group on it is finished."""
        # called for a lost actor as well: the fleet reads `suspect` before that
        if self.suspect:
            self.reserved, self.suspect = False, None
        if not self.running and not self.validation_calls and not self.idle.is_set():
            self.count_idle()
            self.idle.set()

    def count_idle(self) -> None:
        """Update `idle_seconds` to the current time."""
        now = self._loop.time()
        if self.idle.is_set() or self.state is SlotState.ASLEEP:
            self.idle_seconds += now - self._idle_since
            self._unobserved_idle += now - self._idle_since
        self._idle_since = now

    def observe(self, statistics: EngineStatistics) -> None:
        """Record new statistics of the engine. The statistics of a replacement actor start from 0."""
        self.count_idle()
        now = self._loop.time()
        self._decoding.add(self.statistics, statistics, now - self._observed_at - self._unobserved_idle)
        self._observed_at, self._unobserved_idle = now, 0.0
        # the counters of a replacement start from 0, below the last reading
        preempted = max(statistics.preemptions - self.statistics.preemptions, 0)
        self.preemptions += preempted
        self.concurrency.observe(statistics.running, statistics.kv_cache_usage, preempted)
        self.statistics = statistics

    def take_decoding(self) -> Decoding:
        """Return the decoding work of the slot's engines since the last call, from readings of their statistics."""
        taken, self._decoding = self._decoding, Decoding(gpu=self.statistics.gpu)
        return taken

    # Reservation for a suspect group

    def reserve(self) -> None:
        """Give the slot no more samples, so that it becomes empty and a suspect group can be generated on it alone."""
        self.reserved = True

    def isolate(self, group: Group | None) -> None:
        """Generate `group` alone on the reserved slot, or free the slot if `group` is None."""
        self.reserved, self.suspect = group is not None, group
