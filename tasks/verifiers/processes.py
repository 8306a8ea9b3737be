"""Processes that judge: started from a forkserver, watched, killed at their limit, replaced.

    submit ─► waiting ─► worker   fast: as many as there are cores for
                 ▲       worker ─► slow: hangs, or is at something long; out of the others' way
                 │         │ └───► killed at the time limit and replaced
             put back ◄────┘ where all slow places are taken and others wait

A call that takes longer than its verifier's patience no longer counts as one of the `workers`, so that the calls behind
it go on at once. One thread does all the bookkeeping and owns all that it keeps; should it fail, every call ends as an
error that says so.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from typing import Any, NamedTuple

from tasks.verifiers import worker
from tasks.verifiers.calls import Call
from tasks.verifiers.scores import Score

ATTEMPTS = 2
"""Workers that a call may lose before it is an error."""
FAILED_STARTS = 3
RECYCLE_AFTER = 20_000
"""Calls after which a worker is replaced, whatever its checkers have left behind in it."""
SLOW_PLACES = 16
"""Slow calls at one time, each of which may take all the memory that it is allowed."""
STARVED_FACTOR = 4
"""Times the limit that a call at low priority may take where it did not get half of the limit as CPU time."""
_PROCESS_CPU_CLOCK = 2
"""Marks the clock of another process for `clock_gettime` (Linux)."""
DEATH_SECONDS = 5.0
"""How long a worker that closed its pipe may take to end by itself."""

logger = logging.getLogger(__name__)


class _Patience(NamedTuple):
    """When a call is slow, and what becomes of its process then.

    One that computes is timed by its CPU clock. It then runs behind all others, cannot return from there without
    privileges, and is not used again. What runs a sandbox, or a user's function with all that it has loaded, is worth
    keeping: it is never put back, and where all slow places are taken it keeps its own.
    """

    seconds: float
    lowered: bool


_COMPUTES = _Patience(0.05, lowered=True)
_PATIENCE = {"code": _Patience(0.25, lowered=False), "function": _Patience(1.0, lowered=False)}
COLD_SECONDS = 1.0
"""More patience with the first call that starts a sandbox or imports a user's module in a worker."""
STARVED_SECONDS = 1.0
"""After so much wall time a call is slow, however little CPU time it got."""


@dataclass(eq=False)
class Job:
    """A call on its way. `settle` is called once, with the score and whether the call ran out of time."""

    call: Call
    settle: Callable[[Score, bool], None]
    lost_workers: int = 0

    @property
    def patience(self) -> _Patience:
        """What its verifier is granted."""
        return _PATIENCE.get(self.call.verifier, _COMPUTES)


@dataclass(eq=False)
class _Worker:
    process: Any
    pipe: Connection
    ready: bool = False
    slow: bool = False
    lowered: bool = False
    calls: int = 0
    job: Job | None = None
    began: float = 0.0
    began_cpu: float = 0.0
    slow_at: float = 0.0
    known: set[str] = field(default_factory=set)

    def begin(self, job: Job) -> None:
        self.job, self.began, self.began_cpu = job, time.monotonic(), self.cpu_seconds()
        cold = not job.patience.lowered and job.call.verifier not in self.known
        self.slow_at = self.began + job.patience.seconds + cold * COLD_SECONDS
        self.known.add(job.call.verifier)
        self.calls += 1

    def cpu_seconds(self) -> float:
        """What the process has used so far; all time in the world where it has just ended."""
        try:
            return time.clock_gettime((~self.process.pid << 3) | _PROCESS_CPU_CLOCK)
        except OSError:
            return float("inf")

    def is_slow(self, now: float) -> bool:
        """Whether its call has been slow; puts `slow_at` off where the machine was slow instead."""
        assert self.job is not None
        patience = self.job.patience
        if now < self.slow_at:
            return False
        left = patience.seconds - (self.cpu_seconds() - self.began_cpu)
        if not patience.lowered or left <= 0 or now - self.began >= STARVED_SECONDS:
            return True
        self.slow_at = now + left
        return False

    def lower(self) -> None:
        """Have all others run before it: the idle class weighs a fifth of what the lowest priority does."""
        self.lowered = True
        with contextlib.suppress(ProcessLookupError):  # it has just ended, which is heard of next
            os.sched_setscheduler(self.process.pid, os.SCHED_IDLE, os.sched_param(0))


@dataclass
class Counters:
    """What happened to the processes so far. `put_back` are calls that had to wait for a slow place."""

    started: int = 0
    died: int = 0
    killed: int = 0
    retries: int = 0
    put_back: int = 0


class Processes:
    """The workers and the thread that directs them; thread-safe."""

    def __init__(self, workers: int, time_limit_s: float, settings: worker.Settings) -> None:
        """Start `workers` processes, without waiting for them."""
        self.counters = Counters()
        self.ready = threading.Semaphore(0)
        self.failed_starts = 0
        self.given_up = False
        self.ended: str | None = None
        self._count = workers
        self._time_limit_s = time_limit_s
        self._settings = settings
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([worker.PRELOAD])
        self._unsettled: set[Job] = set()
        self._incoming: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._put_back: deque[Job] = deque()
        self._workers: list[_Worker] = []
        self._dying: list[Any] = []
        self._gate = threading.Lock()
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_writing, False)
        self._closing = False
        self._thread = threading.Thread(target=self._direct, name="verifiers", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done; it is settled from another thread, or at once as an error where all has ended."""
        with self._gate:
            if self.ended is None:
                self._unsettled.add(job)
                self._incoming.append(job)
                self._wake()
                return
        job.settle(Score.unjudged(self.ended), False)

    def close(self) -> None:
        """End the workers. Jobs that are not done are settled as errors. Callable from any thread, and twice."""
        with self._gate:
            self._closing = True
            if self.ended is None:
                self._wake()
        if threading.current_thread() is not self._thread:
            self._thread.join()

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError):  # full: it is awake
            os.write(self._wake_writing, b"!")

    def _direct(self) -> None:
        reason = "the verifier pool was closed"
        try:
            while not self._closing:
                self._turn()
        except BaseException as error:
            logger.exception("the thread that directs the verifier workers failed")
            reason = f"the verifier pool broke: {type(error).__name__}: {error}"
        finally:
            self._end(reason)

    def _turn(self) -> None:
        self._replace()
        self._waiting.extend(self._take_incoming())
        self._hand_out()
        pipes = {each.pipe: each for each in self._workers}
        ends = [process.sentinel for process in self._dying]
        heard = wait([self._wake_reading, *pipes, *ends], self._until_next_moment())
        if self._wake_reading in heard:
            os.read(self._wake_reading, 4096)
        for pipe in heard:
            if isinstance(pipe, Connection):
                self._hear(pipes[pipe])
        self._watch_clocks()
        self._forget_the_dead()

    def _end(self, reason: str) -> None:
        """Settle every job that is left, whatever goes wrong with one of them, and end the processes."""
        with self._gate:
            self.ended = reason
            os.close(self._wake_reading)
            os.close(self._wake_writing)
        for each in list(self._workers):
            self._dismiss(each)
        for job in list(self._unsettled):
            try:
                self._settle(job, Score.unjudged(reason))
            except Exception:
                logger.exception("a call could not be settled")
        for process in self._dying:
            process.join()
        self._forget_the_dead()

    def _settle(self, job: Job, score: Score, timed_out: bool = False) -> None:
        self._unsettled.remove(job)
        job.settle(score, timed_out)

    def _take_incoming(self) -> list[Job]:
        return [self._incoming.popleft() for _ in range(len(self._incoming))]

    def _hand_out(self) -> None:
        idle = sorted((each for each in self._workers if each.ready and each.job is None), key=lambda each: each.calls)
        busy = sum(each.job is not None and not each.slow for each in self._workers)
        for job in list(self._put_back):
            if idle and self._slow_place(job):
                self._put_back.remove(job)
                each = idle.pop()
                if self._hand(each, job, self._put_back):
                    self._make_way(each)
        while idle and busy < self._count and (queue := self._waiting or self._put_back):
            busy += self._hand(idle.pop(), queue.popleft(), queue)

    def _hand(self, each: _Worker, job: Job, queue: deque[Job]) -> bool:
        """Whether the worker has taken the job; one that has died leaves it at the head of its queue."""
        try:
            each.pipe.send(job.call)
        except (BrokenPipeError, ConnectionError):
            queue.appendleft(job)  # the death is heard of next
            return False
        except Exception as error:
            self._settle(job, Score.unjudged(f"the call cannot be handed to a process: {error}"))
            return False
        each.begin(job)
        return True

    def _hear(self, each: _Worker) -> None:
        try:
            message = each.pipe.recv()
        except (EOFError, OSError):
            self._bury(each)
            return
        if message is None:
            each.ready = True
            self.ready.release()
            return
        job, each.job = each.job, None
        assert job is not None, "a worker answers what it was asked, once"
        self.failed_starts = 0
        each.slow = False
        if each.lowered or each.calls >= RECYCLE_AFTER:
            self._dismiss(each)
        self._settle(job, message)

    def _bury(self, each: _Worker) -> None:
        """A worker died by itself: its call is repeated once, and a start that fails is counted."""
        each.process.join(DEATH_SECONDS)
        exit_code, job = each.process.exitcode, each.job
        self._dismiss(each)
        self.counters.died += 1
        logger.warning("a verifier worker died (exit code %s)", exit_code)
        if job is None:
            self.failed_starts += not each.ready
            return
        job.lost_workers += 1
        if job.lost_workers == ATTEMPTS:
            self._settle(job, Score.unjudged(f"the worker died {ATTEMPTS} times (exit code {exit_code})"))
            return
        self.counters.retries += 1
        self._waiting.appendleft(job)

    def _watch_clocks(self) -> None:
        now = time.monotonic()
        for each in [each for each in self._workers if each.job is not None]:
            job = each.job
            assert job is not None
            if now >= self._ends(each, now):
                self.counters.killed += 1
                self._dismiss(each)
                self._settle(job, Score.binary(False, f"time limit of {self._time_limit_s:g} s"), timed_out=True)
            elif each.slow or not each.is_slow(now):
                continue
            elif self._slow_place(job):
                self._make_way(each)
            elif self._waiting and job.patience.lowered:
                self.counters.put_back += 1
                self._dismiss(each)
                self._put_back.append(job)

    def _ends(self, each: _Worker, now: float) -> float:
        """When a call has run out of time; one behind all others is not charged for the time that they took."""
        limit = self._time_limit_s
        if each.lowered and now - each.began >= limit and each.cpu_seconds() - each.began_cpu < limit / 2:
            limit *= STARVED_FACTOR
        return each.began + limit

    def _make_way(self, each: _Worker) -> None:
        assert each.job is not None
        each.slow = True
        if each.job.patience.lowered:
            each.lower()

    def _slow_place(self, job: Job) -> bool:
        """Whether there is one. What is not lowered has as many as there are workers: more would crowd each other.

        The limits of programs in a sandbox are wall time, and right ones would fail them.
        """
        alike = sum(each.slow and each.lowered == job.patience.lowered for each in self._workers)
        return alike < (SLOW_PLACES if job.patience.lowered else self._count)

    def _until_next_moment(self) -> float:
        """Seconds until a call becomes slow or overdue; a look around now and then where nothing runs."""
        now = time.monotonic()
        moments = [1.0]
        for each in self._workers:
            if each.job is not None:
                next_one = each.slow_at if now < each.slow_at and not each.slow else self._ends(each, now)
                moments.append(next_one - now)
        return max(0.0, min(moments))

    def _replace(self) -> None:
        """As many fast workers as there should be, unless they end as they start."""
        if self.failed_starts >= FAILED_STARTS and not self.given_up:
            self.given_up = True
            reason = f"verifier workers died {self.failed_starts} times without a judgement between"
            self._refuse([*self._waiting, *self._put_back, *self._take_incoming()], reason)
        if self.given_up and self._incoming:  # the next job gets another try
            self.given_up, self.failed_starts = False, 0
        fast = [each for each in self._workers if not each.slow]
        idle = sorted((each for each in fast if each.ready and each.job is None), key=lambda each: each.calls)
        for each in idle[: max(0, len(fast) - self._count)]:  # a slow one came back
            self._dismiss(each)
        while not self.given_up and sum(not each.slow for each in self._workers) < self._count:
            if not self._start_worker():
                break

    def _refuse(self, jobs: Iterable[Job], reason: str) -> None:
        self._waiting.clear()
        self._put_back.clear()
        for job in jobs:
            self._settle(job, Score.unjudged(reason))

    def _start_worker(self) -> bool:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=worker.work, args=(theirs, self._settings), daemon=True)
        try:
            process.start()
        except (EOFError, OSError) as error:  # the forkserver died; the next start makes a new one
            logger.warning("a verifier worker could not be started: %s", error)
            self.failed_starts += 1
            ours.close()
            return False
        finally:
            theirs.close()
        self.counters.started += 1
        self._workers.append(_Worker(process, ours))
        return True

    def _dismiss(self, each: _Worker) -> None:
        """Kill it, without waiting: behind all others it may take its time to end, too."""
        self._workers.remove(each)
        each.pipe.close()
        if each.process.is_alive():
            each.process.kill()
        self._dying.append(each.process)

    def _forget_the_dead(self) -> None:
        for process in [process for process in self._dying if not process.is_alive()]:
            self._dying.remove(process)
            process.close()
