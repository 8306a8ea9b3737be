"""Judges many responses at once, under hard limits, each only once.

    submit ─┐           ┌► parts of a weighted prompt, each a call of its own
    score ──┼─► cache ──┼► lanes of processes that compute: math, instructions, a user's functions
    score_many ─┘       ├► the client of a code service, which runs programs
                        └► the client of a judge of chat

Everything behind `submit` runs on one event loop, in a thread of its own. Every call ends in exactly one score. What a
response causes is judged: out of time or memory it scores 0, wherever and however busy the machine is. What we cause is
`Score.error`. Nothing is started before the first call that needs it.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
import time
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Coroutine, Iterable
from concurrent.futures import Future
from dataclasses import replace
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

from tasks.verifiers import registry
from tasks.verifiers.calls import Call, Messages, Verifier, VerifierStats
from tasks.verifiers.config import VerifiersConfig
from tasks.verifiers.lanes import LaneLimits, Lanes
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.weighted import combine, parts_of

if TYPE_CHECKING:
    from tasks.verifiers.code.client import CodeClient

CLOSED = "the verifier pool was closed"
WALL_FACTOR, FUNCTION_WALL_FACTOR = 100, 6
"""Wall seconds per CPU second of the limit: for what only computes, and may have to wait for a core, and for a user's
function, which may wait for anything."""

Result = TypeVar("Result")


class VerifierPool:
    """A pool of judges; thread-safe, usable from asyncio, closed by `close` or as a context manager."""

    def __init__(self, workers: int = 1, config: VerifiersConfig | None = None, *, max_pending: int = 256) -> None:
        """Start nothing yet.

        Args:
            workers: processes of each verifier that judge at one time; as many again take what needs long.
            config: limits and options of the verifiers.
            max_pending: calls of `submit` that may wait or run at one time; a further one waits in the caller.

        Raises:
            ValueError: `workers` or `max_pending` is not above 0, or a judge's key is missing in the environment.
        """
        for name, value in (("workers", workers), ("max_pending", max_pending)):
            if value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        self.workers = workers
        self.config = config or VerifiersConfig()
        from tasks.verifiers.code.client import CodeClient  # with the library of its requests

        self._code = CodeClient(self.config.code, workers)
        self._ours: dict[str, Lanes | CodeClient] = {**_lanes(workers, self.config), "code": self._code}
        self._judges: dict[str, Verifier] = self._ours | _chat(self.config)
        self._places = threading.BoundedSemaphore(max_pending)
        self._stats: dict[str, VerifierStats] = defaultdict(VerifierStats)
        self._scores: OrderedDict[bytes, Score] = OrderedDict()
        self._under_way: dict[bytes, asyncio.Task[Score]] = {}
        self._open: set[asyncio.Task[Score]] = set()
        self._owner = os.getpid()
        self._closed = False
        self._gate = threading.Lock()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="verifiers", daemon=True)
        self._thread.start()
        atexit.register(self.close)

    def submit(
        self, verifier: str, response: str, ground_truth: Any, messages: Messages | None = None
    ) -> Future[Score]:
        """Have a response judged; blocks the calling thread while `max_pending` calls are on their way.

        Raises `ValueError` for a verifier that is unknown, `RuntimeError` once the pool is closed and in a forked
        copy of the process that owns the pool. The future always gets a score, never an exception. Its callbacks run in
        the pool's thread and must not wait for others.
        """
        self._admit(verifier)
        self._places.acquire()
        future = self._enter(Call(verifier, response, ground_truth, messages))
        future.add_done_callback(lambda _: self._places.release())
        return future

    async def score(self, verifier: str, response: str, ground_truth: Any, messages: Messages | None = None) -> Score:
        """As `submit`, for asyncio: the event loop stays free."""
        self._admit(verifier)
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

    def start(self, verifiers: Iterable[str]) -> None:
        """Begin to load what these verifiers need, without waiting for it."""
        for judge in self._starting(verifiers):
            asyncio.run_coroutine_threadsafe(judge.start(), self._loop)

    def wait_ready(self, verifiers: Iterable[str]) -> None:
        """Return once these verifiers have loaded what they need; no need to call it, but good before a measurement.

        Raises `RuntimeError` where one of them cannot start.
        """
        for judge in self._starting(verifiers):
            try:
                asyncio.run_coroutine_threadsafe(judge.start(), self._loop).result()
            except CannotJudge as reason:
                raise RuntimeError(str(reason)) from None

    def stats(self) -> dict[str, VerifierStats]:
        """The counters so far, by verifier."""
        return self._on_loop(
            lambda: {name: replace(each, latencies_s=each.latencies_s.copy()) for name, each in self._stats.items()}
        )

    def figures(self) -> dict[str, float]:
        """All counters by name: `math/calls`, `math/p99_seconds`, `math/workers/died`, `judge/requests`, ..."""
        figures = {
            f"{verifier}/{name}": value
            for verifier, stats in self.stats().items()
            for name, value in stats.figures().items()
        }
        for verifier, judge in self._judges.items():
            about = "judge" if verifier in registry.CHAT else verifier
            figures |= {f"{about}/{name}": value for name, value in self._on_loop(judge.usage).items()}
        return figures

    def close(self) -> None:
        """End all processes; calls still on their way end as `Score.error`. Closing twice does nothing."""
        if os.getpid() != self._owner:  # a forked copy owns no processes
            return
        with self._gate:
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
            raise RuntimeError(CLOSED)

    def _starting(self, verifiers: Iterable[str]) -> list[Lanes | CodeClient]:
        return [self._ours[verifier] for verifier in dict.fromkeys(verifiers) if verifier in self._ours]

    def _on_loop(self, look: Callable[[], Result]) -> Result:
        """What `look` sees while nothing changes."""

        async def looking() -> Result:
            return look()

        with self._gate:
            seen = None if self._closed else asyncio.run_coroutine_threadsafe(looking(), self._loop)
        return look() if seen is None else seen.result()

    def _enter(self, call: Call) -> Future[Score]:
        """The future of a call, which the loop has not begun yet."""
        with self._gate:
            if not self._closed:
                return asyncio.run_coroutine_threadsafe(self._shared(call), self._loop)
        closed: Future[Score] = Future()
        closed.set_result(Score.unjudged(CLOSED))
        return closed

    async def _shared(self, call: Call) -> Score:
        """From memory, together with the same call that is under way, or anew."""
        if call.verifier == "function":  # one that does not apply to a response must not read as a reward of 0
            part = {"verifier": "function", "weight": 1.0, "ground_truth": call.ground_truth}
            call = call._replace(verifier=registry.WEIGHTED, ground_truth={"rewards": [part]})
        return await self._remembered(call)

    async def _remembered(self, call: Call) -> Score:
        key = call.digest(self._code.isolation) if self.config.cache_entries else None
        if key is not None and (score := self._scores.get(key)) is not None:
            self._scores.move_to_end(key)
            self._stats[call.verifier].repeated += 1
            return score
        task = self._under_way.get(key) if key is not None else None
        if task is not None:
            self._stats[call.verifier].repeated += 1
        else:
            task = self._loop.create_task(self._judged(call, key))
            self._open.add(task)
            task.add_done_callback(self._open.discard)
            if key is not None:
                self._under_way[key] = task
        try:
            return await asyncio.shield(task)  # whoever is cancelled, others may wait for the same
        except asyncio.CancelledError:
            if task.cancelled():
                return Score.unjudged(CLOSED)
            raise

    async def _judged(self, call: Call, key: bytes | None) -> Score:
        began = time.monotonic()
        try:
            score = await self._parts(call) if call.verifier == registry.WEIGHTED else await self._alone(call)
        except CannotJudge as reason:
            score = Score.unjudged(str(reason))
        except Exception as failure:  # a judge's own bug must reach the caller as an error, not vanish in the loop
            score = Score.unjudged(f"{call.verifier} failed: {type(failure).__name__}: {failure}")
        finally:
            if key is not None:
                del self._under_way[key]
        self._stats[call.verifier].add(time.monotonic() - began, score.timed_out, score.error is not None)
        if key is not None and score.error is None and not score.timed_out:
            self._scores[key] = score
            if len(self._scores) > self.config.cache_entries:
                self._scores.popitem(last=False)
        return score

    async def _alone(self, call: Call) -> Score:
        if not isinstance(call.response, str):
            raise CannotJudge(f"the response is of type {type(call.response).__name__}, not a string")
        if call.verifier not in self._judges:
            raise CannotJudge(f"{call.verifier} needs a judge, and none is configured (verifiers.judge)")
        return await self._judges[call.verifier].judge(*call)

    async def _parts(self, call: Call) -> Score:
        parts = parts_of(call.ground_truth)
        calls = [Call(part.verifier, call.response, part.ground_truth, call.messages) for part in parts]
        return combine(parts, await asyncio.gather(*map(self._remembered, calls)))

    async def _end(self) -> None:
        """Cancel what is open, end the judges, then the loop."""
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)
        ending: list[Coroutine[Any, Any, None]] = [judge.close() for judge in set(self._judges.values())]
        try:
            await asyncio.gather(*ending)
        finally:
            self._loop.call_soon(self._loop.stop)


def _lanes(workers: int, config: VerifiersConfig) -> dict[str, Lanes]:
    """The lanes of each verifier that has some."""
    seconds, memory, processes = config.time_limit_seconds, config.memory_mib, config.processes(workers)
    computing = LaneLimits(processes, seconds, WALL_FACTOR * seconds, memory)
    calling = LaneLimits(processes, seconds, FUNCTION_WALL_FACTOR * seconds, memory, quick=False, locked_up=False)
    return {
        "math": Lanes("math", computing),
        "precise_if": Lanes("precise_if", computing, os.environ.get("NLTK_DATA")),
        "function": Lanes("function", calling),
    }


def _chat(config: VerifiersConfig) -> dict[str, Verifier]:
    if config.judge is None:
        return {}
    from tasks.verifiers.chat import make_judge

    return dict.fromkeys(registry.CHAT, make_judge(config.judge))
