"""Processes that judge: started from a forkserver, watched, killed at their limit, replaced.

    submit ─► waiting ─► worker   fast: as many as there are cores for
                         worker ─► slow: hangs, or is at something long; lowest priority, out of the others' way
                              └──► killed at the time limit and replaced

A call that takes longer than `SLOW_SECONDS` no longer counts as one of the `workers`, so that the calls behind it go on
at once; its process runs at the lowest priority, and is not used again. One thread does all the bookkeeping.
"""

from __future__ import annotations

import contextlib
import logging
import multiprocessing
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from tasks.verifiers import worker
from tasks.verifiers.calls import Call
from tasks.verifiers.scores import Score

ATTEMPTS = 2
"""Workers that a call may lose before it is an error."""
FAILED_STARTS = 3
SLOW_SECONDS = 0.25
SLOW_PLACES = 16
"""Slow calls at one time; where more are slow, the others wait for them."""
RECYCLE_AFTER = 20_000
"""Calls after which a worker is replaced, whatever its checkers have left behind in it."""
LOWEST_PRIORITY = 19

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Job:
    """A call on its way. `settle` is called once, with the score and whether the call ran out of time."""

    call: Call
    settle: Callable[[Score, bool], None]
    lost_workers: int = 0


@dataclass(eq=False)
class _Worker:
    process: Any
    pipe: Connection
    ready: bool = False
    slow: bool = False
    calls: int = 0
    job: Job | None = None
    began: float = 0.0


@dataclass
class Counters:
    """What happened to the processes so far."""

    started: int = 0
    died: int = 0
    killed: int = 0
    retries: int = 0


class Processes:
    """The workers and the thread that directs them; thread-safe."""

    def __init__(self, workers: int, time_limit_s: float, settings: worker.Settings) -> None:
        """Start `workers` processes, without waiting for them."""
        self.counters = Counters()
        self.ready = threading.Semaphore(0)
        self.failed_starts = 0
        self.given_up = False
        self._count = workers
        self._time_limit_s = time_limit_s
        self._settings = settings
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([worker.PRELOAD])
        self._incoming: deque[Job] = deque()
        self._waiting: deque[Job] = deque()
        self._workers: list[_Worker] = []
        self._wake_reading, self._wake_writing = os.pipe()
        os.set_blocking(self._wake_writing, False)
        self._closing = threading.Event()
        for _ in range(workers):
            self._start_worker()
        self._thread = threading.Thread(target=self._direct, name="verifiers", daemon=True)
        self._thread.start()

    def submit(self, job: Job) -> None:
        """Have a job done; it is settled from another thread."""
        self._incoming.append(job)
        self._wake()

    def close(self) -> None:
        """End the workers. Jobs that are not done are settled as errors."""
        if self._closing.is_set():
            return
        self._closing.set()
        self._wake()
        self._thread.join()
        for each in self._workers:
            each.process.kill()
        for each in self._workers:
            each.process.join()
            each.pipe.close()
        self._abandon("the verifier pool was closed")
        os.close(self._wake_reading)
        os.close(self._wake_writing)

    def _wake(self) -> None:
        with contextlib.suppress(BlockingIOError, OSError):  # full: it is awake; closed: nobody is left to wake
            os.write(self._wake_writing, b"!")

    def _direct(self) -> None:
        while not self._closing.is_set():
            self._waiting.extend(self._take_incoming())
            self._hand_out()
            pipes = {each.pipe: each for each in self._workers}
            for ready in wait([self._wake_reading, *pipes], self._until_next_moment()):
                if ready == self._wake_reading:
                    os.read(self._wake_reading, 4096)
                else:
                    self._hear(pipes[ready])  # type: ignore[index]
            self._watch_clocks()
            self._replace()

    def _take_incoming(self) -> list[Job]:
        return [self._incoming.popleft() for _ in range(len(self._incoming))]

    def _hand_out(self) -> None:
        idle = [each for each in self._workers if each.ready and each.job is None and not each.slow]
        busy = sum(each.job is not None and not each.slow for each in self._workers)
        while self._waiting and idle and busy < self._count:
            each, job = idle.pop(), self._waiting.popleft()
            try:
                each.pipe.send(job.call)
            except (BrokenPipeError, ConnectionError):
                self._waiting.appendleft(job)  # its death is heard of next
                continue
            except Exception as error:
                job.settle(Score.unjudged(f"the call cannot be handed to a process: {error}"), False)
                continue
            each.job, each.began = job, time.monotonic()
            each.calls += 1
            busy += 1

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
        self.failed_starts = 0
        if each.slow or each.calls >= RECYCLE_AFTER:
            self._dismiss(each)
        assert job is not None
        job.settle(message, False)

    def _bury(self, each: _Worker) -> None:
        """A worker died by itself: its call is repeated once, and a start that fails is counted."""
        each.process.join()
        self._workers.remove(each)
        each.pipe.close()
        self.counters.died += 1
        exit_code, job = each.process.exitcode, each.job
        logger.warning("a verifier worker died (exit code %s)", exit_code)
        if job is None:
            self.failed_starts += not each.ready
            return
        job.lost_workers += 1
        if job.lost_workers == ATTEMPTS:
            job.settle(Score.unjudged(f"the worker died {ATTEMPTS} times (exit code {exit_code})"), False)
            return
        self.counters.retries += 1
        self._waiting.appendleft(job)

    def _watch_clocks(self) -> None:
        now = time.monotonic()
        for each in [each for each in self._workers if each.job is not None]:
            if now - each.began >= self._time_limit_s:
                job, each.job = each.job, None
                self.counters.killed += 1
                self._dismiss(each)
                assert job is not None
                job.settle(Score.binary(False, f"time limit of {self._time_limit_s:g} s"), True)
            elif not each.slow and now - each.began >= SLOW_SECONDS and self._slow() < SLOW_PLACES:
                each.slow = True
                with contextlib.suppress(ProcessLookupError):  # it has just ended, which is heard of next
                    os.setpriority(os.PRIO_PROCESS, each.process.pid, LOWEST_PRIORITY)

    def _until_next_moment(self) -> float:
        """Seconds until a call becomes slow or overdue; a look around now and then where nothing runs."""
        now = time.monotonic()
        full = self._slow() >= SLOW_PLACES
        moments = [
            each.began + (self._time_limit_s if each.slow or full else min(SLOW_SECONDS, self._time_limit_s))
            for each in self._workers
            if each.job is not None
        ]
        return max(0.0, min(moments) - now) if moments else 1.0

    def _slow(self) -> int:
        return sum(each.slow for each in self._workers)

    def _replace(self) -> None:
        """As many fast workers as there should be, unless they end as they start."""
        if self.failed_starts >= FAILED_STARTS and not self.given_up:
            self._abandon(f"verifier workers died {self.failed_starts} times without a judgement between")
            self.given_up = True
        if self.given_up and self._waiting:  # the next job gets another try
            self.given_up, self.failed_starts = False, 0
        while not self.given_up and len(self._workers) - self._slow() < self._count:
            if not self._start_worker():
                break

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
        self._workers.remove(each)
        each.process.kill()
        each.process.join()
        each.pipe.close()

    def _abandon(self, reason: str) -> None:
        jobs = [*(each.job for each in self._workers if each.job), *self._waiting, *self._take_incoming()]
        self._waiting.clear()
        for each in self._workers:
            each.job = None
        for job in jobs:
            job.settle(Score.unjudged(reason), False)
