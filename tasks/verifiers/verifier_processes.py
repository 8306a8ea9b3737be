"""Runs the worker processes of one verifier. Each scores one call at a time, under a CPU time limit of the kernel.

Calls wait in a fast and a slow queue (`worker_queues`), so that hanging responses do not delay the others: a call that
exceeds its budget is killed with its worker, and starts again with a larger budget. Calls with the same answer, which
are common within a group, share one execution in the slow queue. A score depends on the CPU time that a response takes
and not on how long it had to wait for it. A response scores 0 if it exceeds its time or memory, or kills its process
twice. A call whose process was lost for another reason is repeated.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from tasks.verifiers import registry
from tasks.verifiers.calls import Messages, Response
from tasks.verifiers.overlapping import Overlapping
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.worker import OVERRUN_SIGNAL, RETIRED, describe_timeout
from tasks.verifiers.worker_queues import WorkerLost, WorkerQueues
from tasks.verifiers.workers import Counters, Worker, Workers, encode_call

FIRST_CPU_SECONDS = 0.03
"""CPU seconds of the first budget. Most calls take a few milliseconds."""
RECYCLE_AFTER = 20_000
"""Calls after which a worker is replaced. This limits the state that its checkers can accumulate."""
ENDED = "ended its process twice"
"""Beginning of the detail of a response that killed its process twice."""


class ProcessLimits(NamedTuple):
    """Limits of the worker processes of one verifier.

    Attributes:
        processes: workers of the fast queue; the slow queue has half as many.
        cpu_seconds: CPU seconds of one call.
        wall_seconds: wall seconds of one call, after which a waiting process is stopped.
        memory_mib: MiB of address space of one process.
        budgets: True for budgets that grow up to `cpu_seconds`. If False, each call gets all its time at once.
        locked_up: True for workers without network and environment. A user's function needs both.
        overlapping: True if calls of `async def` functions share a process (`tasks.verifiers.overlapping`).
    """

    processes: int
    cpu_seconds: float
    wall_seconds: float
    memory_mib: int
    budgets: bool = True
    locked_up: bool = True
    overlapping: bool = False


@dataclass
class _Shared:
    """One execution in the slow queue, which lives as long as a call waits for it; `score` is its result."""

    turn: asyncio.Lock = field(default_factory=asyncio.Lock)
    score: Score | None = None


class VerifierProcesses:
    """Scores with one verifier in worker processes.

    They belong to one event loop, and none is started before the first call.
    """

    def __init__(self, verifier: str, limits: ProcessLimits, nltk_data: str | None = None) -> None:
        """Create it without starting a process.

        Args:
            verifier: its name.
            limits: limits of its processes.
            nltk_data: the folder that contains NLTK's data.
        """
        self.counters = Counters()
        self._limits = limits
        self._workers = Workers(verifier, limits.memory_mib, limits.locked_up, nltk_data)
        self._overlapping: Overlapping | None = None
        if limits.overlapping:
            self._overlapping = Overlapping(self._workers, limits.cpu_seconds, limits.wall_seconds, self.counters)
        first = FIRST_CPU_SECONDS if limits.budgets else limits.cpu_seconds
        self._queues = WorkerQueues(
            limits.processes, first, limits.cpu_seconds, lambda _, nice: _Queue(self._workers, nice, self.counters)
        )
        self._shared: WeakValueDictionary[str, _Shared] = WeakValueDictionary()

    async def start(self) -> None:
        """Start the fork server and wait until it has warmed up; raises `CannotJudge` if it cannot start."""
        await self._workers.wait_until_ready()

    async def judge(self, verifier: str, response: Response, ground_truth: Any, messages: Messages | None) -> Score:
        """Score one response in a worker, and return the score.

        Raises:
            CannotJudge: no worker can be started, or the call cannot be serialized as JSON.
        """
        call = {"response": response, "ground_truth": ground_truth, "messages": messages}
        if self._overlapping is not None and (score := await self._overlapping.judge(call)) is not None:
            return score
        work = partial(_judge, call, self._limits.wall_seconds)
        if (score := await _wait_for_score(self._queues.run_fast(work))) is not None:
            return score
        answer = registry.answer_of(verifier, response, ground_truth)
        shared = _Shared() if answer is None else self._shared.setdefault(answer, _Shared())
        async with shared.turn:
            if shared.score is None:
                score = await _wait_for_score(self._queues.run_slow(work))
                overrun = f"time limit of {self._limits.cpu_seconds:g} s of CPU time"
                shared.score = Score.overrun(overrun) if score is None else score
            return shared.score

    async def close(self) -> None:
        """End all processes."""
        if self._overlapping is not None:
            await self._overlapping.close()
        await self._workers.close()

    def usage(self) -> dict[str, float]:
        """Return the counters of calls and worker processes, by name; empty before workers have started."""
        if not self.counters.started:
            return {}
        counters = vars(self.counters) | {"patient": self._queues.slow_calls}
        return {f"workers/{name}": value for name, value in counters.items()}


class _Queue:
    """The workers of one queue, all of the same niceness."""

    def __init__(self, workers: Workers, nice: int, counters: Counters) -> None:
        self._workers = workers
        self._nice = nice
        self._counters = counters
        self._idle: list[Worker] = []

    async def judge(self, line: bytes, wall_seconds: float, fresh: bool) -> Score | None:
        """Score one call, a line of JSON, in a worker, or in a new worker if `fresh`.

        Returns:
            The score, or None if the call took more CPU time than its line allows.

        Raises:
            WorkerLost: the worker was ended by another signal.
            CannotJudge: `wall_seconds` have passed, or the worker failed.
        """
        worker = await self._take(fresh)
        try:
            async with asyncio.timeout(wall_seconds):
                answer = await worker.ask(line)
        except TimeoutError:
            await self._workers.end(worker)
            raise CannotJudge(describe_timeout(wall_seconds), timed_out=True) from None
        except BaseException:  # cancelled: the worker still runs a call whose score is not needed
            self._workers.discard(worker)
            raise
        if answer is None or RETIRED in answer:
            status, _ = await self._workers.end(worker)
            self._count_end(status)
            return None
        if worker.calls < RECYCLE_AFTER:
            self._idle.append(worker)
        else:
            await self._workers.end(worker)
        return Score.from_json(answer)

    def _count_end(self, status: int) -> None:
        """Count the end of a worker by its exit status; raise if it did not end for an exceeded limit."""
        if status == -OVERRUN_SIGNAL:
            self._counters.killed += 1
            return
        self._counters.died += 1
        if status > 0:  # an exit status above 0 is never caused by a response
            raise CannotJudge(f"a {self._workers.name} worker failed: see stderr")
        self._counters.retries += 1
        raise WorkerLost(f"signal {-status}")

    async def _take(self, fresh: bool) -> Worker:
        while self._idle and not fresh:  # other idle workers may have used up their memory, too
            worker = self._idle.pop()
            if not worker.reader.at_eof():
                return worker
            self._counters.died += 1
            await self._workers.end(worker)
        worker = await self._workers.fork(self._nice)
        self._counters.started += 1
        return worker


async def _judge(
    call: dict[str, Any], wall_seconds: float, queue: _Queue, cpu_seconds: float, again: bool
) -> Score | None:
    return await queue.judge(encode_call(call | {"cpu_seconds": cpu_seconds}), wall_seconds, fresh=again)


async def _wait_for_score(running: Awaitable[Score | None]) -> Score | None:
    try:
        return await running
    except WorkerLost as lost:
        return Score.binary(False, f"{ENDED} ({lost})")
