"""A call on its way, the process that it is with, and the patience that it is shown."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from tasks.verifiers.calls import Call
from tasks.verifiers.clocks import OwnTime, make_way
from tasks.verifiers.scores import Score

QUANTUM_SECONDS, QUANTUM_FACTOR = 0.1, 4.0
"""What a call in a slow place gets for itself while others wait for one, and how much more when its turn comes again:
those that are right but slow must not wait until those that hang have used their time up."""


class Patience(NamedTuple):
    """When a call is slow, and what becomes of its process then.

    Attributes:
        cpu_seconds: CPU time that is granted to the process.
        wall_seconds: wall time that is granted, however little of it the process got.
        cold_seconds: more of either, for the first such call in a process.
        lowered: a slow process runs behind all others. It cannot return from there without privileges, and is not used
            again.
        repeatable: where a slow call is in the way it is given up, and begins anew later. Others go on, with a slow
            place or without.
        keeps_time: the process watches what it runs: it tells when that is slow, and ends it at its limits.
    """

    cpu_seconds: float
    wall_seconds: float
    cold_seconds: float
    lowered: bool
    repeatable: bool
    keeps_time: bool = False


COMPUTES = Patience(0.05, 1.0, cold_seconds=0.0, lowered=True, repeatable=True)
RUNS_CODE = Patience(math.inf, 2.0, cold_seconds=1.0, lowered=False, repeatable=True, keeps_time=True)
RUNS_FUNCTIONS = Patience(math.inf, 1.0, cold_seconds=1.0, lowered=False, repeatable=False)
"""A user's function, with all that it has loaded."""


@dataclass(eq=False)
class Job:
    """A call on its way. `settle` is called once, with the score and whether the call ran out of time.

    One that `runs_again` has been slow by the first, hasty look.
    """

    call: Call
    settle: Callable[[Score, bool], None]
    patience: Patience
    quantum_seconds: float = QUANTUM_SECONDS
    runs_again: bool = False
    lost_workers: int = 0


@dataclass(eq=False)
class Worker:
    """A process, and the job that it is at."""

    process: Any
    pipe: Connection
    ready: bool = False
    slow: bool = False
    lowered: bool = False
    asked: bool = False
    calls: int = 0
    job: Job | None = None
    own: OwnTime = field(init=False)
    patience: Patience = field(init=False)
    began: float = 0.0
    slow_at: float = 0.0
    look_at: float = 0.0
    idle_since: float = 0.0
    known: set[str] = field(default_factory=set)

    def begin(self, job: Job, time_limit_s: float) -> None:
        """It has been handed a job, and is looked at when its time may be up."""
        self.job, self.began, self.own = job, time.monotonic(), OwnTime(self.process.pid)
        self.patience = job.patience
        if job.call.verifier not in self.known:
            cold = job.patience.cold_seconds
            self.patience = job.patience._replace(
                cpu_seconds=job.patience.cpu_seconds + cold, wall_seconds=job.patience.wall_seconds + cold
            )
        self.slow_at = self.began + min(self.patience.cpu_seconds, self.patience.wall_seconds)
        self.look_at = self.began + time_limit_s
        self.known.add(job.call.verifier)
        self.asked = False
        self.calls += 1

    def finish(self) -> Job:
        """It has said what became of its job."""
        job, self.job = self.job, None
        assert job is not None, "a worker answers what it was asked, once"
        self.slow, self.idle_since = False, time.monotonic()
        return job

    def is_slow(self, now: float) -> bool:
        """Whether its call has been slow; puts `slow_at` off where the machine was slow instead."""
        if now < self.slow_at:
            return False
        left = self.patience.cpu_seconds - self.own.cpu_seconds()
        if left <= 0 or now - self.began >= self.patience.wall_seconds:
            return True
        self.slow_at = min(now + left, self.began + self.patience.wall_seconds)
        return False

    def lower(self) -> None:
        """Have all others run before it, for ever."""
        self.lowered = True
        make_way(self.process.pid)
