"""Runs many calls of `async def` reward functions in one process, so that they wait for the network at the same time.

    judge ──► one worker, on whose event loop up to `IN_FLIGHT` calls wait ──► score
                 │ if it is lost: out of CPU time or memory, blocked, dead
                 └─► the queues of `make_verifier_processes`, each call with its own process

Each call has its own limit of wall time. If one call ends the process, all its calls are affected: each is then run
again alone, under the limits of any function, and the functions that were in flight never share a process again. A
function counts as `async def` if the file of its module defines it as such.
"""

from __future__ import annotations

import ast
import asyncio
import itertools
import json
import logging
from dataclasses import dataclass
from typing import Any

from tasks.lineage.user_code import find_user_files
from tasks.verifiers.functions import compute_function_digest
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.workers import Counters, Worker, Workers, encode_call

IN_FLIGHT = 32
"""Number of calls that wait in one process at the same time; further ones wait for one of these to end."""
GRACE_SECONDS = 5.0
"""Seconds after a call's limit of wall time. A process that has not ended the call by then counts as blocked."""

logger = logging.getLogger(__name__)


@dataclass
class _Asked:
    """A call in flight: the identity of its function, and the future of its answer (None if its worker was lost)."""

    function: str
    answer: asyncio.Future[dict[str, Any] | None]


class Overlapping:
    """The worker process of overlapping calls. It belongs to one event loop and is started when needed.

    Args:
        workers: forks the worker.
        cpu_seconds: CPU seconds for which the worker may run without returning to its event loop.
        wall_seconds: wall seconds of one call.
        counters: counters of worker processes.
    """

    def __init__(self, workers: Workers, cpu_seconds: float, wall_seconds: float, counters: Counters) -> None:
        self._workers = workers
        self._cpu_seconds = cpu_seconds
        self._wall_seconds = wall_seconds
        self._counters = counters
        self._slots = asyncio.Semaphore(IN_FLIGHT)
        self._numbers = itertools.count()
        self._overlaps: dict[str, bool] = {}
        self._asked: dict[int, _Asked] = {}
        self._worker: Worker | None = None
        self._reading: asyncio.Task[None] | None = None
        self._starting = asyncio.Lock()

    async def judge(self, call: dict[str, Any]) -> Score | None:
        """Score a response by a function, or return None if the call needs its own process.

        Raises:
            CannotJudge: no worker can be started, or the call cannot be serialized as JSON.
        """
        function = self._find_identity(call["ground_truth"])
        if function is None:
            return None
        async with self._slots:
            if not self._overlaps[function]:
                return None
            worker, number = await self._started(), next(self._numbers)
            asked = self._asked[number] = _Asked(function, asyncio.get_running_loop().create_future())
            try:
                answer = await self._answer(worker, number, call, asked)
            finally:
                del self._asked[number]
        if answer is None:  # lost, or the imported function is not `async def`
            self._overlaps[function] = False
            return None
        return Score.from_json(answer)

    async def close(self) -> None:
        """Stop waiting for answers; the worker ends with its fork server."""
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)

    def _find_identity(self, ground_truth: Any) -> str | None:
        """Return the identity of a function whose calls may overlap, or None for any other."""
        if not isinstance(ground_truth, dict) or not isinstance(ground_truth.get("function"), str):
            return None
        identity = f"{ground_truth['function']} {ground_truth.get('digest', '')}"
        if identity not in self._overlaps:
            self._overlaps[identity] = is_async(ground_truth["function"])
        return identity if self._overlaps[identity] else None

    async def _answer(self, worker: Worker, number: int, call: dict[str, Any], asked: _Asked) -> dict[str, Any] | None:
        limits = {"number": number, "cpu_seconds": self._cpu_seconds, "wall_seconds": self._wall_seconds}
        worker.writer.write(encode_call(call | limits))
        try:
            async with asyncio.timeout(self._wall_seconds + GRACE_SECONDS):
                return await asked.answer
        except TimeoutError:
            await self._lose(worker)
        return None

    async def _started(self) -> Worker:
        async with self._starting:
            if self._worker is None:
                self._worker = await self._workers.fork(0, overlapping=True)
                self._counters.started += 1
                self._reading = asyncio.create_task(self._read(self._worker))
            return self._worker

    async def _read(self, worker: Worker) -> None:
        """Pass answers to their calls until the worker ends."""
        try:
            while (line := await worker.reader.readline()).endswith(b"\n"):
                answer = json.loads(line)
                asked = self._asked.get(answer["number"])
                if asked is not None and not asked.answer.done():
                    asked.answer.set_result(answer["score"])
        except ConnectionError:
            pass
        await self._lose(worker)

    async def _lose(self, worker: Worker) -> None:
        """End a worker that was lost or blocked. Its calls, and later ones of their functions, run alone."""
        if worker is not self._worker:
            return
        self._worker = None
        self._counters.died += 1
        functions = sorted({asked.function for asked in self._asked.values()})
        for function in functions:
            self._overlaps[function] = False
        for asked in self._asked.values():
            if not asked.answer.done():
                asked.answer.set_result(None)
        if functions:
            logger.warning(
                "reward functions %s: their process was lost with %d calls in flight (out of CPU time or memory, "
                "blocked, or dead); these calls are repeated, and made one by one from now on",
                ", ".join(function.split()[0] for function in functions),
                len(self._asked),
            )
        await self._workers.end(worker)


def is_async(function: str) -> bool:
    """Return whether the file of a function's module defines it as `async def`, without importing it."""
    module, _, name = function.rpartition(".")
    try:
        compute_function_digest(function)
        tree = ast.parse(find_user_files(module)[module].read_bytes())
    except (CannotJudge, ImportError, SyntaxError, ValueError, OSError):  # the call itself reports the error
        return False
    return any(isinstance(node, ast.AsyncFunctionDef) and node.name == name for node in tree.body)
