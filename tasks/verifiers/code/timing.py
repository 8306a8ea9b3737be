"""Measures the time of one response: the seconds that its processes are charged, and their limits.

A process is charged the CPU time of all its threads, and the time while all of them sleep. A limit on CPU time alone
would not stop a sleeping program, and a limit on wall time would fail correct programs on a busy machine. The wait for
a core is not charged, so that a verdict is the same on an idle machine and on a busy one.

    charged = CPU time (the kernel's account, /proc)  +  sleep (sampled every 20 ms while a test runs)
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Iterator
from contextlib import contextmanager

from tasks.verifiers.code.sandbox import Process
from tasks.verifiers.scores import CannotJudge

SAMPLE_SECONDS = 0.02
"""Interval, in seconds, of checks whether a process sleeps. One check charges at most twice that, however late it
is."""
WALL_FACTOR = 100
"""Wall seconds for each second of the limit, after which a process that is charged nothing is stopped."""
_ROUNDING_SECONDS = 1e-6
"""Tolerance in seconds: a sum of charges that is below the limit by no more than this has reached it."""
_PROCESS_CPU_CLOCK = 2
"""Bits that mark the clock of another process for `clock_gettime`."""
_WANT_THE_CPU = "RD"
"""States of a thread that runs, waits for a core, or waits for a page to be read."""


class OutOfTime(Exception):  # noqa: N818 - named after the event
    """A test has used up its time."""


class TakesLong(Exception):  # noqa: N818 - named after the event
    """A response has used up its budget, and must start again with a larger one."""


class Clock:
    """Counts the time of one response, over its successive processes."""

    def __init__(self, test_seconds: float, total_seconds: float, budget_seconds: float = float("inf")) -> None:
        """Start the clock at 0.

        Args:
            test_seconds: limit of one test.
            total_seconds: limit of all tests.
            budget_seconds: budget of all tests, after which the response must start again.
        """
        self._test_seconds = test_seconds
        self._total_seconds = total_seconds
        self._budget_seconds = budget_seconds
        self._gives_up_at = time.monotonic() + WALL_FACTOR * total_seconds
        self._processes: tuple[Process, ...] = ()
        self._before = 0.0
        self._cpu = 0.0
        self._slept = 0.0
        self._test_began = 0.0

    @property
    def over(self) -> bool:
        """True if the time of all tests is used up."""
        return self.charged() >= self._total_seconds - _ROUNDING_SECONDS

    def begin_test(self) -> None:
        """Start to count the time of another test."""
        self._test_began = self.charged()

    def charged(self) -> float:
        """Return the seconds of computing and sleeping that were charged so far."""
        # The sum decreases when a process ends and its CPU time cannot be read any more.
        self._cpu = max(self._cpu, sum(_read_cpu_seconds(each.pid) for each in self._processes))
        return self._before + self._cpu + self._slept

    @contextmanager
    def watch(self, *processes: Process) -> Iterator[None]:
        """Charge the time of these processes, which were just forked, for the duration of the block."""
        self._processes = processes
        try:
            yield
        finally:
            self.charged()  # the last CPU time of these processes
            self._before += self._cpu
            self._cpu, self._processes = 0.0, ()

    def wait_for(self, descriptor: int, at_most: float = float("inf")) -> None:
        """Return once the descriptor is readable.

        Raises:
            OutOfTime: the test's time is used up, or `at_most` seconds of it.
            TakesLong: the budget is used up.
            CannotJudge: the processes were charged almost nothing in 100 times the limit.
        """
        requests = {each.requests: each for each in self._processes}
        if self._is_readable(descriptor, requests):  # most tests end within the first check
            return
        looked = time.monotonic()
        charged = self.charged()
        ends = min(self._test_began + self._test_seconds, self._total_seconds, charged + at_most)
        while True:
            if charged >= ends:
                self._before -= charged - ends  # a late check is not charged to the response
                raise OutOfTime
            if charged >= self._budget_seconds:
                raise TakesLong
            if looked >= self._gives_up_at:
                raise CannotJudge(f"the program got no CPU time in {WALL_FACTOR * self._total_seconds:g} s")
            if self._is_readable(descriptor, requests):
                return
            now = time.monotonic()
            if not any(_is_runnable(each.pid) for each in self._processes):
                self._slept += min(now - looked, 2 * SAMPLE_SECONDS)
            looked, charged = now, self.charged()

    def _is_readable(self, descriptor: int, requests: dict[int, Process]) -> bool:
        """Return True if the descriptor is readable.

        Waits for up to 20 ms, and answers requests of the processes in the meantime.
        """
        polled = select.poll()  # not `select`, which supports no descriptor above 1023
        for polled_descriptor in (descriptor, *requests):
            polled.register(polled_descriptor, select.POLLIN)
        events = dict(polled.poll(1e3 * SAMPLE_SECONDS))
        for request in events.keys() & requests.keys():
            if events[request] & select.POLLIN:
                requests[request].answer_request()
            else:  # the process has ended
                del requests[request]
        return descriptor in events


def _read_cpu_seconds(pid: int) -> float:
    """Return the CPU seconds of all threads of a process so far, or 0 if it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CPU_CLOCK)
    except OSError:
        return 0.0


def _is_runnable(pid: int) -> bool:
    """Return True if one of the process's threads runs, or would run if it had a core."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return False
    return any(_read_state(pid, thread) in _WANT_THE_CPU for thread in threads)


def _read_state(pid: int, thread: str) -> str:
    try:
        with open(f"/proc/{pid}/task/{thread}/stat") as stream:
            return stream.read().rpartition(")")[2].split()[0]
    except OSError:  # it has just ended
        return "Z"
