"""Worker processes that judge by computing: one call at a time in each, under a kernel's limit of CPU time.

A lane is a number of workers with a queue. Each verifier has two, so that hanging responses do not hold up the others:

    judge ──► quick lane ──────────────────────────────────► score
               │  `processes` workers, 30 ms of CPU time a call
               └─ overrun: the worker is killed, and the call begins anew in the
                           patient lane ───────────────────► score
                           half as many workers at a lower priority, four times as much CPU time after each overrun,
                           up to the full limit

Calls that state the same answer, as those of a group often do, share one judgement in the patient lane. A verdict
depends on the CPU time that a response takes and not on how long it had to wait for it. Hanging responses compete with
each other in the patient lane (`grants` has the order). A response is judged by what it does to its process: out of
time, out of memory, a process that it killed twice. A call whose process was lost to something else is repeated.
"""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from tasks.verifiers import registry
from tasks.verifiers.calls import Messages, Response
from tasks.verifiers.grants import PATIENT_NICE, PrioritySemaphore, few, grants
from tasks.verifiers.overlapping import Overlapping
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.templates import Template, Worker
from tasks.verifiers.worker import OVERRUN_SIGNAL, RETIRED, waited

QUICK_CPU_SECONDS = 0.03
"""CPU seconds of the first grant. Most judgements take a few milliseconds."""
RECYCLE_AFTER = 20_000
"""Calls after which a worker is replaced, which bounds what its checkers can leave behind in it."""
ATTEMPTS = 2
"""Processes that a call may end before that is its verdict."""
ENDED = "ended its process twice"
"""The beginning of the detail of a response with that verdict."""


class LaneLimits(NamedTuple):
    """Bounds of the worker processes of one verifier.

    Attributes:
        processes: workers of the quick lane; the patient lane has half as many.
        cpu_seconds: CPU seconds of one judgement.
        wall_seconds: wall seconds of one judgement, after which a process that waits for something is given up.
        memory_mib: MiB of address space of one process.
        quick: True for a quick lane before the patient one. False: each call is granted all its time at once.
        locked_up: True for workers with neither network nor environment. A user's function needs both.
        overlapping: True where calls of `async def` functions share a process (`tasks.verifiers.overlapping`).
    """

    processes: int
    cpu_seconds: float
    wall_seconds: float
    memory_mib: int
    quick: bool = True
    locked_up: bool = True
    overlapping: bool = False


@dataclass
class Counters:
    """Counters of the worker processes of one verifier.

    Attributes:
        started: workers started.
        died: workers that ended during a call or while idle, other than by an overrun.
        killed: workers that the kernel ended for an overrun.
        retries: calls repeated because their worker ended.
        patient: calls that overran the quick lane.
    """

    started: int = 0
    died: int = 0
    killed: int = 0
    retries: int = 0
    patient: int = 0


@dataclass
class _Shared:
    """One judgement in the patient lane, which lives as long as a call waits for it; `score` is its outcome."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    score: Score | None = None


class Lanes:
    """The quick and the patient lane of one verifier.

    They belong to one event loop, and start nothing before the first call.
    """

    def __init__(self, verifier: str, limits: LaneLimits, nltk_data: str | None = None) -> None:
        """Create the lanes without starting a process.

        Args:
            verifier: its name.
            limits: bounds of its processes.
            nltk_data: the folder in which NLTK looks for its data.
        """
        self.counters = Counters()
        self._limits = limits
        self._first_grant = QUICK_CPU_SECONDS if limits.quick else limits.cpu_seconds
        self._template = Template(verifier, limits.memory_mib, limits.locked_up, nltk_data)
        self._overlapping = (
            Overlapping(self._template, limits.cpu_seconds, limits.wall_seconds, self.counters)
            if limits.overlapping
            else None
        )
        self._quick = _Lane(self._template, limits.processes, 0, self.counters)
        self._patient = _Lane(self._template, few(limits.processes), PATIENT_NICE, self.counters)
        self._shared: WeakValueDictionary[str, _Shared] = WeakValueDictionary()

    async def start(self) -> None:
        """Start the template and wait until it is warm; raises `CannotJudge` where it cannot start."""
        await self._template.ready()

    async def judge(self, verifier: str, response: Response, ground_truth: Any, messages: Messages | None) -> Score:
        """Judge one response in a worker, and return the score.

        Raises:
            CannotJudge: no worker can be started, or the call is no JSON.
        """
        call = {"response": response, "ground_truth": ground_truth, "messages": messages}
        if self._overlapping is not None and (score := await self._overlapping.judge(call)) is not None:
            return score
        seconds, *more = grants(self._first_grant, self._limits.cpu_seconds)
        score = await self._quick.run(_line(call, seconds), seconds, self._limits.wall_seconds)
        if score is not None:
            return score
        self.counters.patient += 1
        answer = registry.answer_of(verifier, response, ground_truth)
        shared = _Shared() if answer is None else self._shared.setdefault(answer, _Shared())
        async with shared.turn:
            if shared.score is None:
                shared.score = await self._patiently(call, more)
            return shared.score

    async def _patiently(self, call: dict[str, Any], grants: list[float]) -> Score:
        """Judge a call in the patient lane, by these grants of CPU seconds."""
        for seconds in grants:
            score = await self._patient.run(_line(call, seconds), seconds, self._limits.wall_seconds)
            if score is not None:
                return score
        return Score.overrun(f"time limit of {self._limits.cpu_seconds:g} s of CPU time")

    async def close(self) -> None:
        """End all processes."""
        if self._overlapping is not None:
            await self._overlapping.close()
        await self._template.close()

    def usage(self) -> dict[str, float]:
        """Return the counters of calls and worker processes, by name; none before workers have started."""
        if not self.counters.started:
            return {}
        return {f"workers/{name}": value for name, value in vars(self.counters).items()}


class _Lane:
    """A number of workers with a queue of calls."""

    def __init__(self, template: Template, processes: int, nice: int, counters: Counters) -> None:
        self._template = template
        self._nice = nice
        self._counters = counters
        self._slots = PrioritySemaphore(processes)
        self._idle: list[Worker] = []

    async def run(self, line: bytes, granted: float, wall_seconds: float) -> Score | None:
        """Judge one call, a line of JSON, in a worker.

        Args:
            line: the call.
            granted: CPU seconds of the call, by which the queue is ordered.
            wall_seconds: wall seconds after which it is given up.

        Returns:
            The score; None where the call took more CPU time than it was granted.
        """
        async with self._slots.hold(granted):
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
                    raise CannotJudge(f"a {self._template.name} worker failed: see stderr")
                self._counters.retries += 1
            assert isinstance(outcome, int), "a score has been returned"
            return Score.binary(False, f"{ENDED} (signal {-outcome})")

    async def _once(self, worker: Worker, line: bytes, wall_seconds: float) -> Score | int:
        """Run one call in one worker: return its score, or the exit status of the worker that ended instead."""
        try:
            async with asyncio.timeout(wall_seconds):
                answer = await worker.ask(line)
        except TimeoutError:
            await self._template.end(worker)
            raise CannotJudge(waited(wall_seconds), timed_out=True) from None
        except BaseException:  # cancelled: the worker is at a call whose score is not wanted any more
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
