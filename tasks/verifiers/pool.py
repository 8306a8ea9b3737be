"""Judges many responses at once, under hard limits, each only once.

    submit ─┐             ┌► parts of a weighted prompt, each a call of its own
    score ──┼─► slots ─► cache ─► processes that compute (math, instructions): killed and replaced at will
    score_many ─┘ max_pending ├─► processes that hold something (code: a sandbox; functions: what they loaded)
                              └─► correspondence (chat judges and code servers: awaited)

A response that overruns the time or memory limit was judged: it scores 0. A worker that dies under a response is the
judge's failure: the call is repeated once, then it is `Score.error`. Every call ends in exactly one score.

Workers come from a forkserver, which imports SymPy and the checkers once; a replacement is then a fork, not a start.
As everywhere in `multiprocessing`, a script that uses a pool guards its top level with `if __name__ == "__main__"`.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from dataclasses import replace
from functools import partial
from types import TracebackType
from typing import Any, Self

from tasks.verifiers import registry, worker
from tasks.verifiers.calls import Call, Messages, VerifierStats
from tasks.verifiers.config import VerifiersConfig
from tasks.verifiers.correspondence import Correspondence, Correspondent
from tasks.verifiers.jobs import COMPUTES, RUNS_CODE, RUNS_FUNCTIONS, Job
from tasks.verifiers.processes import RESERVE, Processes
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.slots import Slots
from tasks.verifiers.weighted import Part, combine, parts_of

_PATIENCE = {"code": RUNS_CODE, "function": RUNS_FUNCTIONS}


class _Lineage:
    """Whether this process may start workers: not where it was forked from one that had started the forkserver."""

    def __init__(self) -> None:
        self.started = self.forked = False
        os.register_at_fork(after_in_child=self._note_fork)

    def admit(self) -> None:
        if self.forked:
            raise RuntimeError(
                "no verifier worker can be started: this process was forked from one that uses verifiers; start it "
                "with spawn or forkserver"
            )
        self.started = True

    def _note_fork(self) -> None:
        self.forked = self.started


_lineage = _Lineage()


class VerifierPool:
    """A pool of verifier processes; thread-safe, usable from asyncio, closed by `close` or as a context manager."""

    def __init__(self, workers: int = 1, config: VerifiersConfig | None = None, *, max_pending: int = 256) -> None:
        """Start the workers, without waiting for them.

        Args:
            workers: number of processes of each kind that judge at one time, those aside that take long.
            config: limits and options of the verifiers.
            max_pending: calls that may wait or run at one time; a further one waits in the caller (back-pressure).
        """
        for name, value in (("workers", workers), ("max_pending", max_pending)):
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        _lineage.admit()
        self.workers = workers
        self.config = config or VerifiersConfig()
        self._slots = Slots(max_pending)
        self._lock = threading.Lock()
        self._stats: dict[str, VerifierStats] = defaultdict(VerifierStats)
        self._scores: OrderedDict[bytes, Score] = OrderedDict()
        self._under_way: dict[bytes, Future[Score]] = {}
        self._owner = os.getpid()
        self._closed = False
        self._open = threading.Lock()
        correspondents = _correspondents(self.config)  # before any process: it raises where a key is missing
        settings = worker.Settings(self.config, os.environ.get("NLTK_DATA"))
        limit = self.config.time_limit_seconds
        self._computing = Processes(workers, limit, replace(settings, rehearses=True), reserve=RESERVE)
        self._keeping = Processes(workers, limit, settings, on_demand=True)
        self._computing.neighbour, self._keeping.neighbour = self._keeping, self._computing
        self._correspondence = Correspondence(correspondents)
        atexit.register(self.close)

    def submit(
        self, verifier: str, response: str, ground_truth: Any, messages: Messages | None = None
    ) -> Future[Score]:
        """Judge in a worker; blocks the calling thread while `max_pending` calls are on their way.

        Raises `ValueError` for a verifier that is unknown, `RuntimeError` once the pool is closed and in a forked
        copy of the process that owns the pool. The future always gets a score, never an exception, and cannot be
        cancelled: its time limit bounds it. Its callbacks run in a thread of the pool's and must not wait for others.
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
            if self._computing.ended is not None:
                raise RuntimeError(self._computing.ended)
            if self._computing.ready.acquire(timeout=0.1):
                ready += 1
            elif self._computing.failed_starts or self._computing.given_up:
                raise RuntimeError("verifier workers end as they start; their reason is on stderr")
            elif time.monotonic() > deadline:
                raise TimeoutError(f"{ready} of {self.workers} verifier workers were ready after {timeout_s} s")
        for _ in range(ready):
            self._computing.ready.release()

    def stats(self) -> dict[str, VerifierStats]:
        """The counters so far, by verifier."""
        with self._lock:
            return {
                verifier: replace(stats, latencies_s=stats.latencies_s.copy())
                for verifier, stats in self._stats.items()
            }

    def figures(self) -> dict[str, float]:
        """All counters by name: `math/calls`, `math/p99_seconds`, `workers/died`, those of the judges, ..."""
        by_verifier = {
            f"{verifier}/{name}": value
            for verifier, stats in self.stats().items()
            for name, value in stats.figures().items()
        }
        processes = {f"workers/{name}": value for name, value in self._counters().items()}
        return by_verifier | processes | {f"judge/{k}": v for k, v in self._correspondence.usage().items()}

    def _counters(self) -> dict[str, int]:
        computing, keeping = (vars(each.counters) for each in (self._computing, self._keeping))
        return {name: count + keeping[name] for name, count in computing.items()}

    def close(self) -> None:
        """Kill the workers; calls still on their way end as `Score.error`. Closing twice does nothing."""
        if os.getpid() != self._owner:  # a forked copy owns no workers
            return
        with self._open:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        try:
            self._correspondence.close()
        finally:
            try:
                self._computing.close()
            finally:
                self._keeping.close()

    def __enter__(self) -> Self:
        """The pool itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Close the pool."""
        self.close()

    def _admit(self, verifier: str) -> None:
        registry.require(verifier)
        if os.getpid() != self._owner:
            raise RuntimeError("this process was forked from the one that owns the verifier pool")
        if self._closed:
            raise RuntimeError("the verifier pool is closed")

    def _enter(self, call: Call) -> Future[Score]:
        """The future of a call that has a place; the place is given back when it is settled."""
        if call.verifier == "function":  # one that does not apply to a response must not read as a reward of 0
            part = {"verifier": "function", "weight": 1.0, "ground_truth": call.ground_truth}
            call = call._replace(verifier=registry.WEIGHTED, ground_truth={"rewards": [part]})
        future = self._judge(call)
        future.add_done_callback(lambda _: self._slots.release())
        return future

    def _judge(self, call: Call) -> Future[Score]:
        """From memory, together with the same call that is under way, or anew."""
        key = call.digest() if self.config.cache_entries else None
        future: Future[Score] = Future()
        future.set_running_or_notify_cancel()
        with self._lock:
            if key is not None:
                if (score := self._scores.get(key)) is not None:
                    self._scores.move_to_end(key)
                    self._stats[call.verifier].repeated += 1
                    future.set_result(score)
                    return future
                if key in self._under_way:
                    self._stats[call.verifier].repeated += 1
                    return self._under_way[key]
                self._under_way[key] = future
        began = time.monotonic()

        def settle(score: Score, timed_out: bool) -> None:
            self._note(call, key, score, time.monotonic() - began, timed_out)
            future.set_result(score)

        try:
            self._begin(call, settle)
        except Exception as failure:  # nothing has begun, and whoever waits for the future must not wait for ever
            settle(Score.unjudged(f"{call.verifier} failed: {type(failure).__name__}: {failure}"), False)
        return future

    def _begin(self, call: Call, settle: Callable[[Score, bool], None]) -> None:
        if call.verifier == registry.WEIGHTED:
            self._begin_parts(call, settle)
        elif call.verifier in self._correspondence:
            with self._open:  # what is submitted while it closes would never be settled
                closed = self._closed
                if not closed:
                    self._correspondence.submit(call, settle)
            if closed:
                settle(Score.unjudged("the verifier pool was closed"), False)
        elif call.verifier in registry.CHAT:
            settle(Score.unjudged(f"{call.verifier} needs a judge, and none is configured (verifiers.judge)"), False)
        else:
            patience = _PATIENCE.get(call.verifier, COMPUTES)
            (self._computing if patience.lowered else self._keeping).submit(Job(call, settle, patience))

    def _begin_parts(self, call: Call, settle: Callable[[Score, bool], None]) -> None:
        try:
            parts = parts_of(call.ground_truth)
        except CannotJudge as reason:
            settle(Score.unjudged(str(reason)), False)
            return
        together = _Together(parts, settle)
        for position, part in enumerate(parts):
            future = self._judge(Call(part.verifier, call.response, part.ground_truth, call.messages))
            future.add_done_callback(partial(together.add, position))

    def _note(self, call: Call, key: bytes | None, score: Score, latency_s: float, timed_out: bool) -> None:
        with self._lock:
            self._stats[call.verifier].add(latency_s, timed_out, score.error is not None)
            if key is None:
                return
            del self._under_way[key]
            if score.error is None:
                self._scores[key] = score
                if len(self._scores) > self.config.cache_entries:
                    self._scores.popitem(last=False)


class _Together:
    """Waits for the scores of all parts of a prompt."""

    def __init__(self, parts: list[Part], settle: Callable[[Score, bool], None]) -> None:
        self._parts = parts
        self._settle = settle
        self._scores: dict[int, Score] = {}
        self._lock = threading.Lock()

    def add(self, position: int, done: Future[Score]) -> None:
        with self._lock:
            self._scores[position] = done.result()
            complete = len(self._scores) == len(self._parts)
        if not complete:
            return
        try:
            score = combine(self._parts, [self._scores[i] for i in range(len(self._parts))])
        except Exception as failure:  # this runs as a callback, whose exceptions nobody sees
            score = Score.unjudged(f"the rewards cannot be combined: {type(failure).__name__}: {failure}")
        self._settle(score, False)


def _correspondents(config: VerifiersConfig) -> dict[str, Correspondent]:
    found: dict[str, Correspondent] = {}
    if config.code.remote is not None:
        from tasks.verifiers.code.remote import RemoteCode

        found["code"] = RemoteCode(config.code)
    if config.judge is not None:  # last: what it starts would outlive an error of another's
        from tasks.verifiers.chat import make_judge

        found |= dict.fromkeys(registry.CHAT, make_judge(config.judge))
    return found
