"""Actor slots: the state of one actor of the fleet, and the checked transitions between its states.

    EMPTY ─► WAITING_FOR_RESOURCES ─► LOADING ─► UPDATING ◄─► SERVING ─► BROKEN
      │                ▲                            ▲            ▲
      └─► BACKING_OFF ─┘                            └─── ASLEEP ◄┘

LOADING leads to SERVING at once where the initial checkpoint is the newest policy, and UPDATING and ASLEEP may lead to
BROKEN. Every state of an actor leads back to EMPTY, when the actor is removed.

The fleet asks for a transition by a method of the slot and never assigns a state. Three facts are kept beside the
state because each of them is independent of it: a slot may be reserved for a suspect group, pinned to its version
of the policy by a validation, and idle or not, whether its actor serves or takes new weights.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Set
from enum import Enum

from tasks.generation.interface import Completion, EngineStatistics
from tasks.training.actors.concurrency import Concurrency
from tasks.training.actors.decoding import Decoding
from tasks.training.actors.process import Actor
from tasks.training.config import ActorsConfig
from tasks.training.groups.group import Group, Sample
from tasks.training.restart_budget import RestartBudget

MAX_BACK_OFF = 60.0
"""Longest pause before an actor is replaced, seconds, while the slot is within its restart budget."""


class SlotState(Enum):
    """Stage in the life of a slot's actor. The value completes the sentence "actor 3 ..." in a message."""

    EMPTY = "has not been created"
    """There is no actor: before the first one, and between the removal of one and its back-off."""
    BACKING_OFF = "is replaced after a pause"
    """The last actor was lost, and the slot pauses before it creates another."""
    WAITING_FOR_RESOURCES = "waits for resources of the cluster"
    """An actor is created, and Ray has no CPUs or GPUs for it yet."""
    LOADING = "loads its engine"
    """The actor has its resources, and its engine is not running yet."""
    UPDATING = "takes new weights"
    """The engine is running, and is taking the newest weights: its first ones, or in place of older ones."""
    SERVING = "generates"
    """The engine takes requests under the version of the policy that the slot names."""
    ASLEEP = "sleeps while the learner has its GPU"
    """The engine keeps its requests, and generates nothing until it is woken (`placement: turns`)."""
    BROKEN = "has failed and is being removed"
    """A request failed because of the actor; it is given nothing more, and is removed next."""


_REMOVABLE = frozenset(SlotState) - {SlotState.EMPTY, SlotState.BACKING_OFF}
"""The states in which a slot has an actor, or one that is being created."""


class ActorSlot:
    """State of one actor slot: its current actor, load, policy version and restart budget.

    A slot outlives its actors, which replace one another in it.

    Attributes:
        index: number of the slot, from 0.
        state: stage in the life of the current actor; changed by the methods of this class alone.
        actor: the current actor, from the moment that its engine runs; None before.
        version: version of the policy that the actor generates under; None until it first serves.
        attempts: actors that the slot has had so far.
        running: samples that are being generated, each with the task that waits for it.
        validation_calls: calls to the actor for responses of a validation, which belong to no sample of training.
        environments: episodes whose environments work, so that the actor has nothing to generate for them.
        unpinned: an event that is set unless a validation needs the actor to stay at its version.
        idle: an event that is set while the actor has nothing to generate.
        reserved: whether the slot takes nothing more until a suspect group has been generated on it alone.
        suspect: the suspect group that is being generated on it alone.
        concurrency: the number of sequences that the engine is given at a time; more of them wait in the engine.
        statistics: the newest figures of the engine.
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
        self._prefetch = sys.maxsize // 2 if actors.updates == "static" else actors.prefetch
        self._losses = RestartBudget(actors.max_restarts, actors.restart_window_seconds)
        self._loss = ""  # why the last actor was lost; empty again once an engine of its successor runs
        self._failure: Exception | None = None
        self._failed = asyncio.Event()
        self._decoding = Decoding()
        self._loop = asyncio.get_running_loop()
        self._idle_since = self._observed_at = self._loop.time()
        self._unobserved_idle = 0.0  # seconds of idleness since `_observed_at`

    # Transitions, in the order of an actor's life

    def create(self) -> int:
        """Begin the life of another actor, and return its attempt: the number of actors that the slot had before."""
        self._move({SlotState.EMPTY, SlotState.BACKING_OFF}, SlotState.WAITING_FOR_RESOURCES)
        self.attempts += 1
        return self.attempts - 1

    def load(self) -> None:
        """Record that the cluster has given the actor its resources: its engine loads now."""
        self._move({SlotState.WAITING_FOR_RESOURCES}, SlotState.LOADING)

    def start(self, actor: Actor, version: int | None) -> None:
        """Record that the engine of `actor` runs: it serves policy `version`; None: it takes its first weights now."""
        self._move({SlotState.LOADING}, SlotState.UPDATING if version is None else SlotState.SERVING)
        self.actor, self.version = actor, version
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
        """Record that a request failed because of `actor`; the first failure of the current actor counts."""
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
        """Remove the actor, cancel its requests, and return the samples that it had not finished."""
        self._move(_REMOVABLE, SlotState.EMPTY)
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
        """Record that the removed actor was lost, and why: the slot pauses before it creates another."""
        self._move({SlotState.EMPTY}, SlotState.BACKING_OFF)
        self._losses.record(self._loop.time())
        self._loss = f"was lost ({reason})"

    def _move(self, before: Set[SlotState], after: SlotState) -> None:
        if self.state not in before:
            raise ValueError(f"slot {self.index} is {self.state.name}: it cannot become {after.name}")
        if SlotState.ASLEEP in (self.state, after):
            self.count_idle()
        self.state = after

    # The state, as the fleet asks for it

    @property
    def serves(self) -> bool:
        """Return whether the actor takes requests: it has weights, perhaps older ones, and is not broken."""
        return self.version is not None and self.state is not SlotState.BROKEN

    @property
    def is_pending(self) -> bool:
        """Return whether a static batch should wait for this slot.

        It should for the slot's first engine, which loads, and for an actor that takes its first weights or is about to
        be removed; not for an engine that loads in place of a lost one.
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
        """Return whether a validation may pin the slot: it serves, takes no new weights, and is not reserved."""
        return self.state is SlotState.SERVING and not self.reserved

    @property
    def num_requests(self) -> int:
        """Responses that the actor has to generate now, those of a validation included."""
        return len(self.running) + len(self.validation_calls) - len(self.environments)

    @property
    def free_capacity(self) -> int:
        """Samples that the actor can be given beside those it has; 0 where it does not serve."""
        return self.concurrency.limit + self._prefetch - self.num_requests if self.serves else 0

    @property
    def description(self) -> str:
        """State of the slot as a predicate, for a message: "actor 3 generates 8 samples"."""
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
        """Add to the reason of the actor's loss that its slot stays empty: `limit`, on restarts, is used up."""
        self._loss = f"{self._loss}; it stays empty: {limit}"

    @property
    def back_off_seconds(self) -> float:
        """Pause before the next actor: 0 after the first loss, then 1, 2, 4, ... seconds, up to `MAX_BACK_OFF`.

        Over the budget, it lasts until the oldest loss leaves the window.
        """
        now = self._loop.time()
        if self.is_over_budget:
            return self._losses.seconds_until_freed(now)
        losses = self._losses.used(now)
        return min(2.0 ** (losses - 2), MAX_BACK_OFF) if losses > 1 else 0.0

    # The load, and the time without any

    def begin_request(self) -> None:
        """Record that the actor is given something to generate."""
        if self.idle.is_set():
            self.count_idle()
            self.idle.clear()

    def finish_training(self) -> None:
        """Record that no sample of training is left on the actor; a suspect group has had its turn then."""
        if self.suspect:
            self.reserved, self.suspect = False, None
        if not self.running and not self.validation_calls and not self.idle.is_set():
            self.count_idle()
            self.idle.set()

    def count_idle(self) -> None:
        """Bring `idle_seconds` up to now."""
        now = self._loop.time()
        if self.idle.is_set() or self.state is SlotState.ASLEEP:
            self.idle_seconds += now - self._idle_since
            self._unobserved_idle += now - self._idle_since
        self._idle_since = now

    def observe(self, statistics: EngineStatistics) -> None:
        """Take in new figures of the engine; those of an actor that replaced another count from 0."""
        self.count_idle()
        now = self._loop.time()
        self._decoding.add(self.statistics, statistics, now - self._observed_at - self._unobserved_idle)
        self._observed_at, self._unobserved_idle = now, 0.0
        preempted = max(statistics.preemptions - self.statistics.preemptions, 0)
        self.preemptions += preempted
        self.concurrency.observe(statistics.running, statistics.kv_cache_usage, preempted)
        self.statistics = statistics

    def take_decoding(self) -> Decoding:
        """Return what the slot's engines decoded between readings of their statistics, since the last call."""
        taken, self._decoding = self._decoding, Decoding(gpu=self.statistics.gpu)
        return taken

    # Reservation for a suspect group

    def reserve(self) -> None:
        """Give the slot nothing more, so that it becomes empty of samples and a suspect group can have it alone."""
        self.reserved = True

    def isolate(self, group: Group | None) -> None:
        """Generate `group` alone on the reserved slot; None: no group is suspect any more, and the slot is free."""
        self.reserved, self.suspect = group is not None, group
