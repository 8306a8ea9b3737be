"""Scores many responses at once, under hard limits, and scores equal calls only once.

    submit ──────┐  _schedule                _cached                    _judge
    score  ──────┼────────────► event loop ──────────► cache, or ──────────────► worker processes: math, precise_if,
    score_many ──┘  (any thread)             an equal call in flight      │      │   function, a user's verifiers
                                                                          │      ├► the client of a code server
                                                                          │      └► the LLM judge, reward models
                                                                          └► the parts of a weighted call, each
                                                                             through _cached as a separate call

Everything behind `submit` runs on one event loop, in its own thread. Every call ends in exactly one score. Failures
that the response causes are scores: if it exceeds the limits of time or memory it scores 0, on any machine and under
any load. Failures of the verifier are `Score.error`. No process is started before the first call that needs it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable, Coroutine, Iterable, Iterator
from concurrent.futures import Future
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tasks.verifiers import functions, registry
from tasks.verifiers.calls import Call, Messages, Response, Verifier, VerifierStats
from tasks.verifiers.config import VerifiersConfig
from tasks.verifiers.environment_rewards import NO_REWARD
from tasks.verifiers.factories import judge_of_chat, make_limits, make_verifier_processes, reward_models
from tasks.verifiers.grouped import score_group
from tasks.verifiers.scores import CannotJudge, Score, is_own
from tasks.verifiers.verifier_processes import VerifierProcesses
from tasks.verifiers.weighted import WEIGHTED, combine, is_partial, parse_terms

if TYPE_CHECKING:
    from tasks.verifiers.code.client import CodeClient
    from tasks.verifiers.code.running import Execution

CLOSED = "the verifier pool was closed"
"""The error of calls that were in flight when the pool was closed, or that come later."""
AHEAD = 1024
"""Maximum number of calls that `VerifierPool.scores` schedules beyond the one whose score it waits for."""

Result = TypeVar("Result")


class VerifierPool:
    """A pool of worker processes and clients that scores responses with every verifier.

    It is thread-safe and usable from asyncio. Close it with `close` or use it as a context manager.
    """

    def __init__(
        self,
        workers: int = 1,
        config: VerifiersConfig | None = None,
        *,
        max_pending: int = 256,
        judge_gpus: int | None = None,
    ) -> None:
        """Create the pool without starting a process.

        Args:
            workers: processes of each verifier that run at the same time; half as many more take the slow calls.
            config: limits and options of the verifiers.
            max_pending: calls of `submit` that may wait or run at the same time; a further one blocks its caller.
            judge_gpus: number of GPUs, the last of this process, that the LLM judge uses. Optional. If None, as in
                `config`.

        Raises:
            ValueError: `workers` or `max_pending` is not above 0, the key of a judge is missing in the environment, or
                a reward model cannot be loaded.
        """
        for name, value in (("workers", workers), ("max_pending", max_pending)):
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        self.workers = workers
        self.config = config or VerifiersConfig()
        from tasks.verifiers.code.client import CodeClient  # as it imports the HTTP library

        self._code = CodeClient(self.config.code, workers)
        self._startable: dict[str, VerifierProcesses | CodeClient] = {
            **make_verifier_processes(workers, self.config),
            "code": self._code,
        }
        taken = self.config.judge_gpus if judge_gpus is None else judge_gpus
        self._judges: dict[str, Verifier] = (
            self._startable | judge_of_chat(self.config) | reward_models(self.config, taken)
        )
        self._pending = threading.BoundedSemaphore(max_pending)
        self._stats: dict[str, VerifierStats] = defaultdict(VerifierStats)
        self._scores: OrderedDict[bytes, Score] = OrderedDict()
        self._in_flight: dict[bytes, asyncio.Task[Score]] = {}
        self._tasks: set[asyncio.Task[Any]] = set()
        self._owner = os.getpid()
        self._closed = False
        self._closing_lock, self._own_lock = threading.Lock(), threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verifiers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(
        self, verifier: str, response: Response, ground_truth: Any, messages: Messages | None = None
    ) -> Future[Score]:
        """Schedule the scoring of a response; blocks the calling thread while `max_pending` calls are pending.

        The future always gets a score, never an exception. Its callbacks run in the pool's thread and must not wait for
        other scores.

        Raises:
            ValueError: the verifier is unknown.
            RuntimeError: the pool is closed, or this process was forked from the one that owns it.
        """
        self._check_usable(verifier)
        self._pending.acquire()
        future = self._schedule(Call(verifier, response, ground_truth, messages))
        future.add_done_callback(lambda _: self._pending.release())
        return future

    async def score(
        self, verifier: str, response: Response, ground_truth: Any, messages: Messages | None = None
    ) -> Score:
        """Score a response as `submit` does, for asyncio: it does not block the event loop.

        It does not count towards `max_pending`.
        """
        self._check_usable(verifier)
        return await asyncio.wrap_future(self._schedule(Call(verifier, response, ground_truth, messages)))

    async def score_group(
        self, verifier: str, responses: list[str], ground_truth: Any, messages: Messages | None = None
    ) -> list[Score]:
        """Score all responses to a prompt with a reward for the group, and return their scores in the same order."""

        async def score(verifier: str, response: Response, ground_truth: Any) -> Score:
            return await self.score(verifier, response, ground_truth, messages)

        return await score_group(score, verifier, responses, ground_truth)

    async def run_program(self, program: str, output_chars: int) -> Execution:
        """Run a program in the sandbox of `code` without scoring it, for asyncio; it does not count as a call.

        Args:
            program: its source; it gets no input, and is limited like one test.
            output_chars: maximum number of characters of its output to return. A longer output is cut to head and tail.

        Raises:
            CannotJudge: there is no sandbox or no code server, or the pool is closed in the meantime.
            RuntimeError: the pool is closed, or this process was forked from the one that owns it.
        """
        self._check_usable("code")
        with self._closing_lock:
            if self._closed:
                raise RuntimeError(CLOSED)
            future = asyncio.run_coroutine_threadsafe(self._run_program(program, output_chars), self._loop)
        return await asyncio.wrap_future(future)

    def score_many(self, calls: Iterable[Call], progress: Callable[[int], None] | None = None) -> list[Score]:
        """Return the scores of all calls, in their order. `calls` is read no faster than it is scored.

        Args:
            calls: the calls to score; tuples in the order of `Call`'s fields are accepted, too.
            progress: called in the calling thread with the number of calls done so far, regularly and at the end.
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

    def scores(self, calls: Iterable[Call]) -> Iterator[Score]:
        """Yield the scores of all calls, in their order, each as soon as it and all before it are available.

        `calls` is read up to `AHEAD` calls ahead.
        """
        futures: deque[Future[Score]] = deque()
        for call in calls:
            futures.append(self.submit(*call))
            while futures and (len(futures) > AHEAD or futures[0].done()):
                yield futures.popleft().result()
        while futures:
            yield futures.popleft().result()

    def start(self, verifiers: Iterable[str]) -> None:
        """Begin to load what these verifiers need, and return without waiting for it."""
        for judge in self._starting(verifiers):
            self._loop.call_soon_threadsafe(self._begin, judge)

    def wait_ready(self, verifiers: Iterable[str]) -> None:
        """Load what these verifiers need, and return once it is loaded.

        Calls do not need to wait for this, but measurements of speed do. Raises `RuntimeError` if one cannot start.
        """
        for judge in self._starting(verifiers):
            try:
                asyncio.run_coroutine_threadsafe(judge.start(), self._loop).result()
            except CannotJudge as reason:
                raise RuntimeError(str(reason)) from None

    def stats(self) -> dict[str, VerifierStats]:
        """Return copies of the counters so far, by verifier."""

        def copy_stats() -> dict[str, VerifierStats]:
            for name, stats in self._stats.items():
                stats.advance(time.monotonic(), self._processes(name))
            return {name: replace(stats, latencies_s=stats.latencies_s.copy()) for name, stats in self._stats.items()}

        return self._run_on_loop(copy_stats)

    def figures(self) -> dict[str, float]:
        """Return all counters by name: `math/calls`, `math/p99_seconds`, `math/workers/died`, `judge/requests`, ..."""
        figures = {
            f"{verifier}/{name}": value
            for verifier, stats in self.stats().items()
            for name, value in stats.figures().items()
        }
        for verifier, judge in list(self._judges.items()):  # a user's verifier may be added in the meantime
            about = "judge" if verifier in registry.CHAT else verifier
            figures |= {f"{about}/{name}": value for name, value in self._run_on_loop(judge.usage).items()}
        return figures

    def close(self) -> None:
        """End all processes; calls still in flight end with `Score.error`. A second call does nothing."""
        if os.getpid() != self._owner:  # a forked copy does not own the processes
            return
        with self._closing_lock:
            if self._closed:
                return
            self._closed = True
        atexit.unregister(self.close)
        ending = asyncio.run_coroutine_threadsafe(self._end(), self._loop)
        if threading.current_thread() is not self._thread:
            ending.result()
            self._thread.join()
            self._loop.close()

    def __enter__(self) -> Self:
        """Return the pool itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the pool."""
        self.close()

    def _check_usable(self, verifier: str) -> None:
        registry.require(verifier)
        if os.getpid() != self._owner:
            raise RuntimeError("this process was forked from the one that owns the verifier pool")
        if self._closed:
            raise RuntimeError(CLOSED)

    def _starting(self, verifiers: Iterable[str]) -> list[VerifierProcesses | CodeClient]:
        for verifier in filter(is_own, verifiers := list(verifiers)):
            self._add_own(verifier)
        return [self._startable[verifier] for verifier in dict.fromkeys(verifiers) if verifier in self._startable]

    def _begin(self, judge: VerifierProcesses | CodeClient) -> None:
        """Let a verifier load what it needs; if it cannot start, its first call reports the error."""
        task = self._loop.create_task(judge.start())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())  # else asyncio would log it

    def _run_on_loop(self, look: Callable[[], Result]) -> Result:
        """Return what `look` returns, called on the event loop, so that no counter changes in the meantime."""

        async def looking() -> Result:
            return look()

        with self._closing_lock:
            seen = None if self._closed else asyncio.run_coroutine_threadsafe(looking(), self._loop)
        return look() if seen is None else seen.result()

    def _schedule(self, call: Call) -> Future[Score]:
        """Pass a call to the loop, and return the future of its score."""
        if call.verifier == "function" and isinstance(call.response, str):
            # A function's None means that its reward does not apply. Alone it would become a reward of 0; as the only
            # part of a weighted call it becomes an error.
            part = {"verifier": "function", "weight": 1.0, "ground_truth": call.ground_truth}
            call = call._replace(verifier=WEIGHTED, ground_truth={"rewards": [part]})
        with self._closing_lock:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(self._fetch_score(call), self._loop)
        closed: Future[Score] = Future()
        closed.set_result(Score.from_error(CLOSED))
        return closed

    async def _fetch_score(self, call: Call) -> Score:
        """Return the score of a call: from the cache, from an equal call in flight, or by scoring it."""
        key = call.digest(self._code.isolation) if self.config.cache_entries else None
        if key is not None and (score := self._scores.get(key)) is not None:
            self._scores.move_to_end(key)
            self._stats[call.verifier].repeated += 1
            return score
        task = self._in_flight.get(key) if key is not None else None
        if task is not None:
            self._stats[call.verifier].repeated += 1
        else:
            task = self._loop.create_task(self._judge(call, key))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
            if key is not None:
                self._in_flight[key] = task
        try:
            return await asyncio.shield(task)  # cancelling one caller must not cancel others
        except asyncio.CancelledError:
            if task.cancelled():
                return Score.from_error(CLOSED)
            raise

    async def _judge(self, call: Call, key: bytes | None) -> Score:
        """Score a call, count it, and cache its score under `key` unless it is due to a time limit or an error."""
        began, stats, processes = time.monotonic(), self._stats[call.verifier], self._processes(call.verifier)
        stats.advance(began, processes, calls=1)
        try:
            score = await (
                self._score_terms(call) if call.verifier == WEIGHTED else self._select_verifier(call).judge(*call)
            )
        except CannotJudge as reason:
            score = Score.from_error(reason)
        except Exception as failure:  # a bug must reach the caller as an error, not vanish in the loop
            score = Score.from_error(f"{call.verifier} failed: {type(failure).__name__}: {failure}")
        finally:
            stats.advance(time.monotonic(), processes, calls=-1)
            if key is not None:
                del self._in_flight[key]
        if call.verifier == "function":
            score = functions.add_failure(score, call.ground_truth)
        stats.add(time.monotonic() - began, score.timed_out, score.error is not None)
        if key is not None and score.error is None and not score.timed_out:
            self._scores[key] = score
            if len(self._scores) > self.config.cache_entries:
                self._scores.popitem(last=False)
        return score

    async def _run_program(self, program: str, output_chars: int) -> Execution:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        try:
            return await self._code.run(program, output_chars)
        except asyncio.CancelledError:
            if self._closed:
                raise CannotJudge(CLOSED) from None
            raise
        finally:
            self._tasks.discard(task)

    def _processes(self, verifier: str) -> int:
        """Return how many processes can be busy for a verifier.

        It is one for chat and for each reward model, and none for weighted calls, which consist of other calls.
        """
        if verifier == WEIGHTED:
            return 0
        if verifier == registry.REWARD_MODEL:
            return len(self.config.reward_models)
        return 1 if verifier in registry.CHAT else self.workers

    def _select_verifier(self, call: Call) -> Verifier:
        is_group = call.verifier == "function" and isinstance(call.response, list)
        if not is_group and not isinstance(call.response, str):
            raise CannotJudge(f"the response is of type {type(call.response).__name__}, not a string")
        if call.verifier == "environment":
            raise CannotJudge(NO_REWARD)
        if is_own(call.verifier):
            self._add_own(call.verifier)
        if call.verifier not in self._judges:
            wanted = "a judge, and none" if call.verifier in registry.CHAT else "reward models, and none"
            option = "judge" if call.verifier in registry.CHAT else "reward_models"
            raise CannotJudge(f"{call.verifier} needs {wanted} is configured (verifiers.{option})")
        return self._judges[call.verifier]

    def _add_own(self, verifier: str) -> None:
        """Add the worker processes of a user's verifier, unless they exist."""
        with self._own_lock:
            if verifier not in self._judges:
                processes = VerifierProcesses(verifier, make_limits(self.workers, self.config))
                self._startable[verifier] = self._judges[verifier] = processes

    async def _score_terms(self, call: Call) -> Score:
        """Score the terms of a weighted call at the same time, each as a separate call."""
        partial = is_partial(call.ground_truth)
        terms = parse_terms(call.ground_truth, partial=partial)
        calls = [Call(term.verifier, call.response, term.ground_truth, call.messages) for term in terms]
        return combine(terms, await asyncio.gather(*map(self._fetch_score, calls)), partial=partial)

    async def _end(self) -> None:
        """Cancel the calls in flight, close the verifiers, then stop the loop."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        ending: list[Coroutine[Any, Any, None]] = [judge.close() for judge in set(self._judges.values())]
        try:
            await asyncio.gather(*ending)
        finally:
            self._loop.call_soon(self._loop.stop)
