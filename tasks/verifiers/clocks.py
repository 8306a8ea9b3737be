"""What processes are charged for: the CPU time that they use and the time that they sleep, not the turns they wait for.

A limit on wall time would have right answers fail where the machine is busy; one on CPU time would let a sleeper sleep.
Linux only, as the accounts are the kernel's. Where `/proc` does not tell, wall time is charged.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress

STARVED_FACTOR = 8
"""Times its limit that a judgement may take on a machine that has no time for it."""
_PROCESS_CPU_CLOCK = 2
"""Marks the clock of another process for `clock_gettime`."""


def cpu_seconds(pid: int) -> float:
    """CPU time of all threads of a process so far; 0 where it has ended."""
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CPU_CLOCK)
    except OSError:
        return 0.0


def make_way(pid: int) -> None:
    """Have all others run before the threads of a process; there is no way back from there without privileges.

    The idle class: it weighs a fifth of what the lowest priority does. What has ended is left alone.
    """
    lowered: set[str] = set()
    with suppress(ProcessLookupError, FileNotFoundError):
        while found := set(os.listdir(f"/proc/{pid}/task")) - lowered:  # until no thread starts another meanwhile
            for thread in found:
                with suppress(ProcessLookupError):
                    os.sched_setscheduler(int(thread), os.SCHED_IDLE, os.sched_param(0))
            lowered |= found


class OwnTime:
    """The seconds that processes have had for themselves since this began.

    The processes are taken for one that calls the others: while one of them computes the others wait for it. Of several
    threads, the first one's waits count.
    """

    def __init__(self, *pids: int) -> None:
        """Begin now."""
        self._pids = pids
        self._began = time.monotonic()
        self._cpu = 0.0
        self._cpu_before = sum(map(cpu_seconds, pids))
        self._waited_before = sum(map(_waited, pids))
        self._slept = 0.0

    def cpu_seconds(self) -> float:
        """CPU time since this began."""
        self._cpu = max(self._cpu, sum(map(cpu_seconds, self._pids)) - self._cpu_before)  # less once one has ended
        return self._cpu

    def seconds(self) -> float:
        """CPU time and sleep since this began, never more than the wall time."""
        wall, cpu = time.monotonic() - self._began, self.cpu_seconds()
        if not any(map(_runnable, self._pids)):  # the kernel books a wait when it is over: whoever is in one would
            waited = sum(map(_waited, self._pids)) - self._waited_before  # seem to have slept
            self._slept = max(self._slept, wall - waited - cpu)
        return min(wall, cpu + self._slept)


def _waited(pid: int) -> float:
    """Seconds that the first thread could run and had no CPU."""
    return int(_read(pid, "schedstat", "0 0 0").split()[1]) / 1e9


def _runnable(pid: int) -> bool:
    return _read(pid, "stat", ") ?").rpartition(")")[2].split()[0] == "R"


def _read(pid: int, name: str, otherwise: str) -> str:
    try:
        with open(f"/proc/{pid}/{name}") as stream:
            return stream.read()
    except OSError:
        return otherwise
