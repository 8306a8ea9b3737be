"""Runs and scores many programs at once, in the sandboxes of two queues (`worker_queues`), each used by one thread.

A program that exceeds its budget is ended with its processes, and starts again in the slow queue. There, a hanging
program consists of two processes with their own limits (`timing`), and delays only other slow programs.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any, TypeVar

from tasks.verifiers.code import check_ground_truth, open_sandbox, read_cases
from tasks.verifiers.code.config import CodeConfig
from tasks.verifiers.code.extraction import MAX_PROGRAM_CHARS, extract_program, find_used_names
from tasks.verifiers.code.prepared import prepare
from tasks.verifiers.code.running import Execution, Verdict, run_assertions, run_cases, run_program
from tasks.verifiers.code.sandbox import Sandbox, SandboxError
from tasks.verifiers.code.timing import Clock, TakesLong
from tasks.verifiers.scores import CannotJudge, Score
from tasks.verifiers.worker_queues import WorkerLost, WorkerQueues

FIRST_SECONDS = 0.06
"""Seconds of the first budget. A light program takes a fifth of it, most of it to start."""

TOO_LONG = f"a program of more than {MAX_PROGRAM_CHARS} characters"
"""Reason for not running a program of such a length."""

Result = TypeVar("Result")


class Programs:
    """Contains the sandboxes that run programs, and the queues of waiting programs.

    They belong to one event loop, and start sandboxes when first needed.
    """

    def __init__(self, config: CodeConfig, workers: int) -> None:
        """Create the queues without starting a sandbox.

        Args:
            config: the sandbox and its limits.
            workers: programs that run at the same time in the fast queue, as far as `total_memory_mib` allows.

        Raises:
            ValueError: `workers` is not above 0.
        """
        if workers <= 0:
            raise ValueError(f"workers is {workers}; it must be above 0")
        self.workers = config.workers(workers)
        self.config = config
        self._programs = 0
        self._queues = WorkerQueues(self.workers, FIRST_SECONDS, config.total_seconds, partial(_Sandboxes, config))

    @property
    def counters(self) -> dict[str, int]:
        """The number of programs so far, of programs that exceeded their first budget, and of sandboxes started."""
        started = sum(sandboxes.started for sandboxes in self._queues.workers)
        return {"programs": self._programs, "patient": self._queues.slow_calls, "sandboxes": started}

    async def judge(self, response: str, ground_truth: Any) -> Score:
        """Run the program of a response, and return the proportion of tests that pass; `passed` means all.

        Raises:
            GroundTruthError: there are no tests, or a test is not valid Python.
            CannotJudge: a test needs a module that the sandbox lacks, or there is no sandbox.
        """
        _check(json.dumps(ground_truth))
        program = extract_program(response, find_used_names(ground_truth))
        if program is None:
            return Score.binary(False, "no code block")
        if len(program) > MAX_PROGRAM_CHARS:
            return Score.binary(False, TOO_LONG)
        return score_verdicts(await self._run(partial(judge_tests, program, ground_truth, self.config)))

    async def run(self, program: str) -> Execution:
        """Run a program without input, under the limits of one test, and return its output.

        Raises:
            CannotJudge: there is no sandbox.
        """
        if len(program) > MAX_PROGRAM_CHARS:
            return Execution("", TOO_LONG)
        return await self._run(partial(execute_program, program, self.config))

    async def _run(self, work: Callable[[float, Sandbox], Result]) -> Result:
        """Return what `work` returns, called with the seconds of a budget and a sandbox."""
        self._programs += 1

        async def attempt(sandboxes: _Sandboxes, seconds: float, _: bool) -> Result | None:
            return await sandboxes.use(partial(work, seconds))

        try:
            result = await self._queues.run_fast(attempt)
            if result is None:
                result = await self._queues.run_slow(attempt)
        except WorkerLost as lost:
            raise CannotJudge(str(lost)) from None
        assert result is not None, "the last budget is the limit, at which the tests end"
        return result

    def close(self) -> None:
        """End all sandboxes, with the programs that run in them."""
        for sandboxes in self._queues.workers:
            sandboxes.close()


class _Sandboxes:
    """A number of threads, each with its own sandbox, which is replaced when it fails.

    Attributes:
        started: sandboxes started so far.
    """

    def __init__(self, config: CodeConfig, workers: int, nice: int) -> None:
        self.started = 0
        self._config = config
        self._nice = nice
        self._threads = ThreadPoolExecutor(workers, thread_name_prefix="programs")
        self._own = threading.local()
        self._sandboxes: set[Sandbox] = set()
        self._closed = False

    async def use(self, work: Callable[[Sandbox], Result]) -> Result | None:
        """Call `work` with a sandbox and return its result, or None if it takes longer than its budget.

        Raises:
            WorkerLost: the sandbox failed.
        """
        return await asyncio.get_running_loop().run_in_executor(self._threads, self._try_work, work)

    def close(self) -> None:
        """Kill all sandboxes, and end the threads."""
        self._closed = True
        for sandbox in list(self._sandboxes):
            sandbox.kill()  # the thread that uses it gets a SandboxError, and closes it
        self._threads.shutdown(cancel_futures=True)
        for sandbox in self._sandboxes:
            sandbox.close()

    def _try_work(self, work: Callable[[Sandbox], Result]) -> Result | None:
        if self._closed:
            raise CannotJudge("the code service is being closed")
        try:
            return work(self._open_sandbox())
        except TakesLong:
            return None
        except SandboxError as error:
            self._drop()
            raise WorkerLost(str(error)) from None

    def _open_sandbox(self) -> Sandbox:
        sandbox: Sandbox | None = getattr(self._own, "sandbox", None)
        if sandbox is None:
            sandbox = self._own.sandbox = open_sandbox(self._config, self._nice)
            self._sandboxes.add(sandbox)
            self.started += 1
        return sandbox

    def _drop(self) -> None:
        sandbox: Sandbox | None = getattr(self._own, "sandbox", None)
        if sandbox is not None:
            self._own.sandbox = None
            self._sandboxes.discard(sandbox)
            with suppress(OSError):
                sandbox.close()


@lru_cache(maxsize=1024)  # the samples of a group have the same tests
def _check(ground_truth: str) -> None:
    check_ground_truth(json.loads(ground_truth))


def judge_tests(
    program: str, ground_truth: dict[str, Any], config: CodeConfig, budget: float, sandbox: Sandbox
) -> list[Verdict]:
    """Run a program's tests, and return one verdict for each, in order.

    Raises what `run_cases` and `run_assertions` raise.
    """
    clock = Clock(config.test_seconds, config.total_seconds, budget)
    if "cases" in ground_truth:
        return run_cases(sandbox, program, read_cases(ground_truth["cases"]), config, clock)
    given, setup = (ground_truth.get(key) or "" for key in ("given", "setup"))
    return run_assertions(sandbox, program, prepare(given, setup, ground_truth["tests"]), config, clock)


def execute_program(program: str, config: CodeConfig, budget: float, sandbox: Sandbox) -> Execution:
    """Run a program; raises what `run_program` raises."""
    return run_program(sandbox, program, config, Clock(config.test_seconds, config.total_seconds, budget))


def score_verdicts(verdicts: list[Verdict]) -> Score:
    """Return the score of these verdicts: the proportion that passed, with the first failure as detail."""
    failed = [(number, verdict) for number, verdict in enumerate(verdicts, start=1) if not verdict.passed]
    passed = len(verdicts) - len(failed)
    detail = f"{passed} of {len(verdicts)} tests passed"
    if failed:
        number, verdict = failed[0]
        # The response may determine this text, which may then contain lone surrogates that no file can store.
        detail += f"; test {number}: {verdict.detail}".encode(errors="replace").decode()
    timed_out = any(verdict.timed_out for verdict in verdicts)
    return Score(passed / len(verdicts), not failed, detail, timed_out=timed_out)
