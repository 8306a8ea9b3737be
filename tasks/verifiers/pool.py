"""Worker processes that judge responses under hard limits.

    submit ─┐            ┌► worker (a process of its own: time limit, memory limit, dies with the caller's process)
    score ──┼─► slots ─► │  worker
    score_many ─┘        └► worker
              max_pending     killed at the limit or found dead, and replaced

A response that overruns the time or memory limit was judged: it scores 0. A worker that dies under a response is the
judge's failure: the call is repeated once, then it is `Score.error`. Every call ends in exactly one score.

Workers come from a forkserver, which imports SymPy and the checkers once; a replacement is then a fork, not a start.
As everywhere in `multiprocessing`, a script that uses a pool guards its top level with `if __name__ == "__main__"`.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import multiprocessing
import os
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, field, replace
from functools import partial
from types import TracebackType
from typing import Any, NamedTuple, Self

from pebble import ProcessExpired, ProcessPool

from tasks.verifiers import registry, worker
from tasks.verifiers.registry import Messages
from tasks.verifiers.scores import Score
from tasks.verifiers.slots import Slots

DEFAULT_TIME_LIMIT_S = 10.0
DEFAULT_MEMORY_LIMIT_MIB = 2048
ATTEMPTS = 2
FAILED_STARTS = 3
_SUPERVISION_INTERVAL_S = 0.2

logger = logging.getLogger(__name__)


class Call(NamedTuple):
    """One response to judge."""

    verifier: str
    response: str
    ground_truth: Any
    messages: Messages | None = None


@dataclass
class VerifierStats:
    """What one verifier did in one pool. Latency runs from submission to score, waiting for a worker included."""

    calls: int = 0
    timeouts: int = 0
    errors: int = 0
    retries: int = 0
    total_latency_s: float = 0.0
    max_latency_s: float = 0.0


@dataclass(eq=False)
class _Job:
    """A call on its way; `inner` is the attempt that counts, whose predecessors are ignored."""

    call: Call
    future: Future[Score] = field(default_factory=Future)
    submitted: float = field(default_factory=time.monotonic)
    attempts: int = 0
    inner: Future[Score] | None = None


class VerifierPool:
    """A pool of verifier processes; thread-safe, usable from asyncio, closed by `close` or as a context manager."""

    def __init__(
        self,
        workers: int = 1,
        time_limit_s: float = DEFAULT_TIME_LIMIT_S,
        max_pending: int = 256,
        *,
        memory_limit_mib: int = DEFAULT_MEMORY_LIMIT_MIB,
    ) -> None:
        """Start the workers, without waiting for them.

        Args:
            workers: number of processes.
            time_limit_s: wall time of one judgement from its start in a worker; what overruns is killed and scores 0.
            max_pending: calls that may wait or run at one time; a further one waits in the caller (back-pressure).
            memory_limit_mib: address space of one worker (RLIMIT_AS).
        """
        for name, value in (("workers", workers), ("time_limit_s", time_limit_s), ("max_pending", max_pending)):
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        self.workers = workers
        self.time_limit_s = time_limit_s
        self._memory_limit_mib = memory_limit_mib
        self._slots = Slots(max_pending)
        self._lock = threading.RLock()
        self._jobs: set[_Job] = set()
        self._stats: dict[str, VerifierStats] = defaultdict(VerifierStats)
        self._owner = os.getpid()
        self._closing = threading.Event()
        self._failed_starts = 0
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([worker.PRELOAD])
        self._started = self._context.Semaphore(0)
        self._processes = self._start_processes()
        threading.Thread(target=self._supervise, name="verifier-pool", daemon=True).start()
        atexit.register(self.close)

    def submit(
        self, verifier: str, response: str, ground_truth: Any, messages: Messages | None = None
    ) -> Future[Score]:
        """Judge in a worker; blocks the calling thread while `max_pending` calls are on their way.

        Raises `ValueError` for a verifier that is not available, `RuntimeError` once the pool is closed and in a forked
        copy of the process that owns the pool. The future always gets a score, never an exception, and cannot be
        cancelled: its time limit bounds it.
        """
        self._admit(verifier)
        self._slots.acquire()
        return self._enter(Call(verifier, response, ground_truth, messages))

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None = None) -> Score:
        """As `submit`, for asyncio: neither the wait for a place nor the judgement blocks the event loop."""
        self._admit(verifier)
        await self._slots.acquire_async()
        return await asyncio.wrap_future(self._enter(Call(verifier, response, ground_truth, messages)))

    def score_many(self, calls: Iterable[Call], progress: Callable[[int], None] | None = None) -> list[Score]:
        """The scores of all calls, in their order. `calls` is read no faster than it is judged.

        Args:
            calls: what to judge; tuples in the order of `Call`'s fields do as well.
            progress: called in the calling thread with the number of calls done so far, now and then and at the end.
        """
        report = progress or (lambda done: None)
        finished: list[None] = []
        futures = []
        for call in calls:
            future = self.submit(*call)
            future.add_done_callback(lambda _: finished.append(None))
            futures.append(future)
            report(len(finished))
        scores = []
        for future in futures:
            scores.append(future.result())
            report(max(len(finished), len(scores)))
        return scores

    def wait_ready(self, timeout_s: float = 120.0) -> None:
        """Return once every worker has imported what it needs; no need to call it, but good before a measurement.

        Raises `RuntimeError` where a worker cannot start, `TimeoutError` after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        ready = 0
        while ready < self.workers:
            if self._started.acquire(timeout=0.1):
                ready += 1
            elif self._failed_starts or self._closing.is_set():
                raise RuntimeError("verifier workers end as they start; their reason is on stderr")
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{ready} of {self.workers} verifier workers were ready after {timeout_s} s")
        for _ in range(ready):
            self._started.release()

    def stats(self) -> dict[str, VerifierStats]:
        """The counters so far, by verifier."""
        with self._lock:
            return {verifier: replace(stats) for verifier, stats in self._stats.items()}

    def close(self) -> None:
        """Kill the workers; calls still on their way end as `Score.error`. Closing twice does nothing."""
        if self._closing.is_set() or os.getpid() != self._owner:  # a forked copy owns no workers
            return
        with self._lock:  # not while `_restart` puts others in their place
            self._closing.set()
            processes = self._processes
        atexit.unregister(self.close)
        _stop(processes)
        self._abandon("the verifier pool was closed")

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool."""
        self.close()

    def _start_processes(self) -> ProcessPool:
        limits = worker.Limits(self._memory_limit_mib, os.environ.get("NLTK_DATA"))
        processes = ProcessPool(
            max_workers=self.workers,
            initializer=worker.initialize,
            initargs=(limits, self._started),
            context=self._context,
        )
        try:
            started = processes.active  # pebble starts a pool when it is first asked anything
        except BrokenProcessPool as error:
            raise RuntimeError(
                f"no verifier worker can be started ({error.__cause__!r}); a process that was forked from one that "
                "uses verifiers cannot start any: start it with spawn or forkserver"
            ) from error
        if not started:
            raise RuntimeError("no verifier worker can be started")
        return processes

    def _admit(self, verifier: str) -> None:
        registry.require(verifier)
        if os.getpid() != self._owner:
            raise RuntimeError("this process was forked from the one that owns the verifier pool")

    def _enter(self, call: Call) -> Future[Score]:
        job = _Job(call)
        job.future.set_running_or_notify_cancel()
        with self._lock:
            if self._closing.is_set():
                self._slots.release()
                raise RuntimeError("the verifier pool is closed")
            self._jobs.add(job)
        self._attempt(job)
        return job.future

    def _attempt(self, job: _Job) -> None:
        """Hand a job to the processes; where those have just broken down, `_restart` does it again."""
        with self._lock:
            try:
                inner = self._processes.schedule(registry.judge, args=job.call, timeout=self.time_limit_s)
            except RuntimeError:
                return
            job.inner = inner
        inner.add_done_callback(partial(self._on_done, job))

    def _on_done(self, job: _Job, inner: Future[Score]) -> None:
        if job.inner is not inner or self._closing.is_set():
            return
        failure = inner.exception()
        if failure is None:
            self._failed_starts = 0
            self._settle(job, inner.result())
        elif isinstance(failure, TimeoutError):
            self._settle(job, Score.binary(False, f"time limit of {self.time_limit_s:g} s"), timed_out=True)
        elif isinstance(failure, ProcessExpired):
            self._after_death(job, failure)
        elif not isinstance(failure, BrokenProcessPool):  # that one is `_restart`'s
            self._settle(job, Score.unjudged(f"{type(failure).__name__}: {failure}"))

    def _after_death(self, job: _Job, failure: ProcessExpired) -> None:
        job.attempts += 1
        logger.warning("a verifier worker died (exit code %s) under %s", failure.exitcode, job.call.verifier)
        if job.attempts == ATTEMPTS:
            reason = f"the worker died {ATTEMPTS} times (exit code {failure.exitcode})"
            self._settle(job, Score.unjudged(reason))
            return
        with self._lock:
            self._stats[job.call.verifier].retries += 1
        self._attempt(job)

    def _settle(self, job: _Job, score: Score, timed_out: bool = False) -> None:
        latency = time.monotonic() - job.submitted
        with self._lock:
            if job not in self._jobs:
                return
            self._jobs.remove(job)
            stats = self._stats[job.call.verifier]
            stats.calls += 1
            stats.timeouts += timed_out
            stats.errors += score.error is not None
            stats.total_latency_s += latency
            stats.max_latency_s = max(stats.max_latency_s, latency)
        self._slots.release()
        job.future.set_result(score)

    def _supervise(self) -> None:
        """Watch for the processes breaking down as a whole, as they do when an idle worker is killed."""
        while not self._closing.wait(_SUPERVISION_INTERVAL_S):
            if not self._processes.active:
                self._failed_starts += 1
                logger.warning("the verifier workers broke down; starting new ones")
                try:
                    self._restart()
                except RuntimeError as error:
                    self._abandon(str(error))
                if self._failed_starts >= FAILED_STARTS:
                    self._abandon(f"verifier workers died {self._failed_starts} times without a judgement between")

    def _restart(self) -> None:
        """Put new processes in the place of broken ones, and every call that was on its way into their hands."""
        with self._lock:
            if self._closing.is_set():
                return
            broken, self._processes = self._processes, self._start_processes()
            jobs = list(self._jobs)
            for job in jobs:
                self._attempt(job)
        _stop(broken)

    def _abandon(self, reason: str) -> None:
        with self._lock:
            jobs = list(self._jobs)
        for job in jobs:
            self._settle(job, Score.unjudged(reason))


def _stop(processes: ProcessPool) -> None:
    processes.stop()
    processes.join()
