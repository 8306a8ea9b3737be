"""Processes that judge by computing: one call at a time each, under a limit of CPU time that the kernel keeps.

    judge ──► quick lane ──────────────────────────────────► score
               │  `processes`, tens of milliseconds of CPU a call
               └─ overrun: ended, and begun anew in the ──► patient lane ──► score
                                                            half as many, which make way for others, the full limit

A verdict depends on the CPU time that a response takes and not on how long it had to wait for it. Hanging responses
meet each other in the patient lane, so that the others go on (`grants`). What a response does to its process is judged:
out of time, out of memory, a process that it killed twice. A call whose process was lost to something else is repeated.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from typing import Any, NamedTuple

from tasks.verifiers.calls import Messages
from tasks.verifiers.grants import PATIENT_NICE, PrioritySemaphore, few, grants
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.templates import Template, Worker
from tasks.verifiers.worker import OVERRUN_SIGNAL, RETIRED

QUICK_CPU_SECONDS = 0.03
"""The first grant: most judgements take a few milliseconds."""
RECYCLE_AFTER = 20_000
"""Calls after which a worker is replaced, whatever its checkers have left behind in it."""
ATTEMPTS = 2
"""Processes that a call may end before that is its verdict."""


class LaneLimits(NamedTuple):
    """Bounds of the processes of one verifier.

    Attributes:
        processes: how many there are in the quick lane; the patient one has half as many.
        cpu_seconds: of one judgement.
        wall_seconds: of one judgement, after which a process that waits for something is given up.
        memory_mib: address space of one process.
        quick: whether there is a quick lane. Without, each call is given all its time at once.
        locked_up: whether workers have neither network nor environment. A user's function needs both.
    """

    processes: int
    cpu_seconds: float
    wall_seconds: float
    memory_mib: int
    quick: bool = True
    locked_up: bool = True


@dataclass
class Counters:
    """What happened to the worker processes. `patient` are calls that overran the quick lane."""

    started: int = 0
    died: int = 0
    killed: int = 0
    retries: int = 0
    patient: int = 0


class Lanes:
    """The lanes of one verifier. It belongs to one event loop; nothing is started before the first call."""

    def __init__(self, verifier: str, limits: LaneLimits, nltk_data: str | None = None) -> None:
        """`nltk_data`: where NLTK looks for its data."""
        self.counters = Counters()
        self._limits = limits
        self._first_grant = QUICK_CPU_SECONDS if limits.quick else limits.cpu_seconds
        self._template = Template(verifier, limits.memory_mib, limits.locked_up, nltk_data)
        self._quick = _Lane(self._template, limits.processes, 0, self.counters)
        self._patient = _Lane(self._template, few(limits.processes), PATIENT_NICE, self.counters)

    async def start(self) -> None:
        """Have the template warm; raises `CannotJudge` where it cannot start."""
        await self._template.ready()

    async def judge(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """The score that a worker gives.

        Raises:
            CannotJudge: no worker can be started, or the call is no JSON.
        """
        call = {"response": response, "ground_truth": ground_truth, "messages": messages}
        limits, lane = self._limits, self._quick
        for seconds in grants(self._first_grant, limits.cpu_seconds):
            found = await lane.run(_line(call, seconds), seconds, limits.wall_seconds)
            if found is not None:
                return found
            self.counters.patient += lane is self._quick
            lane = self._patient
        return Score.overrun(f"time limit of {limits.cpu_seconds:g} s of CPU time")

    async def close(self) -> None:
        """End all processes."""
        await self._template.close()

    def usage(self) -> dict[str, float]:
        """The counters by name; none where nothing has been started."""
        if not self.counters.started:
            return {}
        return {f"workers/{name}": value for name, value in vars(self.counters).items()}


class _Lane:
    """A number of workers, each at one call at a time."""

    def __init__(self, template: Template, processes: int, nice: int, counters: Counters) -> None:
        self._template = template
        self._nice = nice
        self._counters = counters
        self._places = PrioritySemaphore(processes)
        self._idle: list[Worker] = []

    async def run(self, line: bytes, granted: float, wall_seconds: float) -> Score | None:
        """The score; None where the call took more CPU time than it was granted."""
        async with self._places.place(granted):
            for attempt in range(ATTEMPTS):
                worker = await self._take(fresh=attempt > 0)  # of the idle ones, another may be bloated too
                outcome = await self._once(worker, line, wall_seconds)
                if isinstance(outcome, Score):
                    return outcome
                if outcome == -OVERRUN_SIGNAL:
                    self._counters.killed += 1
                    return None
                self._counters.died += 1
                if outcome > 0:  # it ended itself, which no response can bring about
                    raise CannotJudge(f"a {self._template.verifier} worker failed: see stderr")
                self._counters.retries += 1
            assert isinstance(outcome, int), "a score has been returned"
            return Score.binary(False, f"ended its process twice (signal {-outcome})")

    async def _once(self, worker: Worker, line: bytes, wall_seconds: float) -> Score | int:
        """The score, or how the worker ended."""
        try:
            async with asyncio.timeout(wall_seconds):
                answer = await worker.ask(line)
        except TimeoutError:
            await self._template.end(worker)
            raise CannotJudge(f"the judgement did not end in {wall_seconds:g} s, most of which it waited") from None
        except BaseException:  # cancelled: the worker is at a call that nobody waits for
            self._template.discard(worker)
            raise
        if answer is None or RETIRED in answer:
            return await self._template.end(worker)
        if worker.calls < RECYCLE_AFTER:
            self._idle.append(worker)
        else:
            await self._template.end(worker)
        return Score.from_json(answer)

    async def _take(self, fresh: bool) -> Worker:
        while self._idle and not fresh:
            worker = self._idle.pop()
            if not worker.reader.at_eof():
                return worker
            self._counters.died += 1
            await self._template.end(worker)
        worker = await self._template.fork(self._nice)
        self._counters.started += 1
        return worker


def _line(call: dict[str, Any], cpu_seconds: float) -> bytes:
    try:
        return json.dumps(call | {"cpu_seconds": cpu_seconds}).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise CannotJudge(f"the call is no JSON: {error}") from None
