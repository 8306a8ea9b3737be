"""The time of one response: what its processes are charged, and what becomes of them when they take long."""

from __future__ import annotations

import math
import select
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import NamedTuple

from tasks.verifiers.clocks import STARVED_FACTOR, OwnTime, make_way
from tasks.verifiers.code.sandbox import Process
from tasks.verifiers.scores import CannotJudge

PATIENCE_CPU_SECONDS = 0.004, 0.015
"""A test that has used so much CPU time is slow, and its response makes way for the others: at least, at most."""
PATIENCE_FACTOR = 3.0
"""In between, so many times what the longest of the last tests took."""
PATIENCE_TESTS = 32
"""How many of them are looked at."""
PATIENCE_SECONDS = 0.25
"""So is one that has had so much time for itself, be it asleep."""
_LOOK_SECONDS = 0.02
"""How often to look at a process that is slow, or seems to be out of time but waits for its turn."""

_LEAST_SECONDS = 0.002

OnSlow = Callable[[], float]
"""Called while a response is slow: for how many of its own seconds it is to go on behind all others, until it asks
again; with 0 it goes on as it is, and asks at the next look. It may raise instead, and the response is given up."""


def at_once() -> float:
    """An `OnSlow`: what is slow makes way, for good."""
    return math.inf


class OutOfTime(Exception):  # noqa: N818 - reads as the sentence it is
    """The test has used its time up."""


class Pace:
    """How long the last tests took that ended, by which one is slow that goes on for much longer.

    Where all take a tenth of a millisecond, one that does not end need not cost the others as much as a hundred of
    them; where some take ten, it must.
    """

    def __init__(self) -> None:
        """As long as there is little to go by, the most patience."""
        self._took: deque[float] = deque(maxlen=PATIENCE_TESTS)

    def add(self, cpu_seconds: float) -> None:
        """A test has ended by itself."""
        self._took.append(cpu_seconds)

    @property
    def patience(self) -> float:
        """The CPU time after which a test is slow."""
        least, most = PATIENCE_CPU_SECONDS
        if len(self._took) < PATIENCE_TESTS // 2:
            return most
        return min(max(PATIENCE_FACTOR * max(self._took), least), most)


class _TestLimits(NamedTuple):
    """In seconds that the response has spent: when a test is over, and when it is slow, by them or by CPU time."""

    ends: float
    slow_at: float
    slow_at_cpu: float


class Clock:
    """The time of one response, over the processes that it gets one after the other.

    Time is the processes' own (`OwnTime`): what others took from them is not charged, or a right program would fail
    because another hangs.
    """

    def __init__(self, test_seconds: float, total_seconds: float, on_slow: OnSlow, pace: Pace | None = None) -> None:
        """So much for a test, and for all of them; by `pace` a test is slow, and those that end add to it."""
        self._test_seconds = test_seconds
        self._total_seconds = total_seconds
        self._on_slow = on_slow
        self._pace = pace or Pace()
        self._began = time.monotonic()
        self._spent = 0.0
        self._own: OwnTime | None = None
        self._processes: tuple[Process, ...] = ()
        self._lowered = False
        self._asks_at = 0.0
        self.begin_test()

    def begin_test(self) -> None:
        """Another test begins."""
        self._test_began = time.monotonic()
        self._test_began_cpu = self._own.cpu_seconds() if self._own else 0.0
        self._patience = self._pace.patience
        self._limits: _TestLimits | None = None

    def end_test(self) -> None:
        """It has ended by itself."""
        if self._own:
            self._pace.add(self._own.cpu_seconds() - self._test_began_cpu)

    @property
    def over(self) -> bool:
        """Whether the time of all tests is used up."""
        return time.monotonic() - self._began >= self._total_seconds and self._seconds() >= self._total_seconds

    @contextmanager
    def watching(self, *processes: Process) -> Iterator[None]:
        """Charge the time of these."""
        self._own, self._processes = OwnTime(*(each.pid for each in processes)), processes
        if self._lowered:
            self._make_way()
        try:
            yield
        finally:
            self._spent += self._own.seconds()
            self._own, self._processes = None, ()

    def wait_for(self, descriptor: int, at_most: float = float("inf")) -> None:
        """Return once there is something to read.

        Raises:
            OutOfTime: the test's time is used up, or `at_most` seconds of it.
            CannotJudge: the machine had no time for the processes.
        """
        # The accounts cost more than most tests: they are opened for a test that takes its time.
        young = self._limits is None and time.monotonic() - self._test_began < PATIENCE_SECONDS
        if young and select.select([descriptor], [], [], self._patience)[0]:
            return
        limits = self._limits = self._limits or self._limits_of_test()
        ends = min(limits.ends, self._seconds() + at_most)
        while True:
            if self._seconds() >= ends:
                raise OutOfTime
            if self._slow(limits) and (granted := self._on_slow()):
                self._asks_at = self._seconds() + granted
                if not self._lowered:
                    self._lowered = True
                    self._make_way()
            if time.monotonic() - self._began >= STARVED_FACTOR * self._total_seconds:
                raise CannotJudge(
                    f"in {STARVED_FACTOR * self._total_seconds:g} s this machine had no time for the program"
                )
            if select.select([descriptor], [], [], self._until_next_look(limits, ends))[0]:
                return

    def _limits_of_test(self) -> _TestLimits:
        """Those of the test that has begun; of what it seems to have slept since, it may have waited for its turn."""
        began = max(0.0, self._seconds() - (time.monotonic() - self._test_began))
        ends = min(began + self._test_seconds, self._total_seconds)
        return _TestLimits(ends, began + PATIENCE_SECONDS, self._test_began_cpu + self._patience)

    def _seconds(self) -> float:
        return self._spent + (self._own.seconds() if self._own else 0.0)

    def _until_next_look(self, limits: _TestLimits, ends: float) -> float:
        """No process is charged for more than passes: nothing is missed until then."""
        assert self._own is not None
        if self._lowered:
            return max(min(ends, self._asks_at) - self._seconds(), _LOOK_SECONDS)
        until_slow = limits.slow_at_cpu - self._own.cpu_seconds()
        return min(max(until_slow, _LEAST_SECONDS), _LOOK_SECONDS) if until_slow > 0 else _LOOK_SECONDS

    def _slow(self, limits: _TestLimits) -> bool:
        assert self._own is not None
        if self._lowered:
            return self._seconds() >= self._asks_at
        return self._own.cpu_seconds() >= limits.slow_at_cpu or self._seconds() >= limits.slow_at

    def _make_way(self) -> None:
        for each in self._processes:
            make_way(each.pid)
