"""The sessions of episodes with the processes in which their environments run; `worker` has the other ends.

    EnvironmentPool ── session ──► Session: begin ──► Asks for a turn ──► turn ──► Asks ... ──► Ended or Failed

There is a process for each episode that is played at one time, forked from one that has loaded the environment, and
used again by the next. An environment that hangs, dies or floods its line costs its own episode alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from tasks.environments.interface import Judgement, Turn
from tasks.environments.spec import EnvironmentSpec
from tasks.failures import one_line
from tasks.verifiers.code.running import Execution
from tasks.verifiers.config import EnvironmentsConfig
from tasks.verifiers.scores import FunctionFailure
from tasks.verifiers.worker import OVERRUN_SIGNAL
from tasks.verifiers.workers import Worker, Workers

RECYCLE_AFTER = 1000
"""Episodes after which a process is replaced, which bounds what environments can leave behind in it."""


@dataclass(frozen=True)
class AsksForTurn:
    """The environment inserts `messages`, or begins `anew` with them, and wants the policy's next turn."""

    messages: list[dict[str, str]]
    anew: bool = False


@dataclass(frozen=True)
class AsksForJudgement:
    """The environment wants the verifier's judgement of `text`."""

    text: str


@dataclass(frozen=True)
class AsksToRun:
    """The environment wants a program to be run in the sandbox, and at most so many characters of its output."""

    program: str
    output_chars: int


@dataclass(frozen=True)
class Ended:
    """The environment has returned. `reward` is None where the verifier judges; `passed` says nothing then."""

    reward: float | None = None
    passed: bool = False


@dataclass(frozen=True)
class Overran:
    """The environment took more time than it may: the episode is cut where it stands."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The environment failed: the sentence for people, and the failure without what depends on the episode.

    The failure is None where the environment has no part in it.
    """

    error: str
    failure: FunctionFailure | None


Request = AsksForTurn | AsksForJudgement | AsksToRun | Ended | Overran | Failed


class Session:
    """The session of one episode. Every method waits for the environment's next request, and never raises for it.

    Attributes:
        reusable: whether the process has ended the episode, and can run another.
        died: whether the process has ended.
    """

    def __init__(self, spec: EnvironmentSpec, worker: Worker, workers: Workers, config: EnvironmentsConfig) -> None:
        self._spec = spec
        self._worker = worker
        self._workers = workers
        self._config = config
        self._seconds = spec.seconds
        self.reusable = False
        self.died = False

    async def begin(
        self, messages: Sequence[Mapping[str, str]], sample: int, seed: int, control_tokens: Sequence[str]
    ) -> Request:
        """Begin the episode of one sample of a prompt (`interface.Prompt`)."""
        return await self._exchange(
            {
                "messages": [dict(message) for message in messages],
                "sample": sample,
                "seed": seed,
                "columns": self._spec.columns,
                "digest": self._spec.digest,
                "tools": self._spec.tools,
                "tool_parser": self._spec.tool_parser,
                "tool_pattern": self._spec.tool_pattern,
                "control_tokens": list(control_tokens),
                "cpu_seconds": self._config.cpu_seconds,
            }
        )

    async def turn(self, turn: Turn) -> Request:
        """Hand over the turn that was asked for."""
        return await self._exchange({"turn": vars(turn)})

    async def over(self, reason: str) -> Request:
        """Refuse a turn, because a limit allows none."""
        return await self._exchange({"over": reason})

    async def judgement(self, judgement: Judgement) -> Request:
        """Hand over the judgement that was asked for."""
        return await self._exchange({"judgement": vars(judgement)})

    async def execution(self, execution: Execution) -> Request:
        """Hand over the output of the program that was to be run."""
        return await self._exchange({"execution": vars(execution)})

    async def refuse(self, reason: str, *, may_pass: bool) -> Request:
        """Refuse a judgement, or to run a program, for a reason that may pass or will not."""
        return await self._exchange({"refused": reason, "may_pass": may_pass})

    async def _exchange(self, message: Mapping[str, Any]) -> Request:
        """Send a message, and return the request that follows, within the wall seconds that are left."""
        clock = asyncio.get_running_loop().time
        began = clock()
        self.reusable = False
        try:
            async with asyncio.timeout(self._seconds):
                self._worker.writer.write(json.dumps(message).encode() + b"\n")
                await self._worker.writer.drain()
                line = await self._worker.reader.readline()
        except TimeoutError:
            return Overran(f"the environment took more than {self._spec.seconds:g} s")
        except ConnectionError:
            return await self._died()
        except ValueError as error:  # a line longer than any message may be
            return self._failed(f"broke its line: {one_line(error)}")
        self._seconds -= clock() - began
        if not line.endswith(b"\n"):
            return await self._died()
        return self._request(json.loads(line))

    def _request(self, message: Mapping[str, Any]) -> Request:
        if "generate" in message:
            return AsksForTurn(message["generate"], message["anew"])
        if "judge" in message:
            return AsksForJudgement(message["judge"])
        if "run" in message:
            return AsksToRun(message["run"], message["output_chars"])
        self.reusable = True
        if "end" in message:
            return Ended(**(message["end"] or {}))
        fault = message["fault"]
        return self._failed(fault["reason"], fault["details"], may_pass=fault["may_pass"])

    async def _died(self) -> Request:
        status = await self._workers.end(self._worker)
        self.died = True
        if not self._workers.has(self._worker):
            path = self._spec.path
            return Failed(f"environment {path} was lost with the process that its processes are forked from", None)
        if status == -OVERRUN_SIGNAL:
            limit = self._config.cpu_seconds
            return Overran(f"the environment took more than {limit:g} s of CPU time (verifiers.environments)")
        # SIGKILL comes from outside: from the kernel where a machine has no memory left, or from an operator
        return self._failed(f"ended its process (status {status})", may_pass=status == -signal.SIGKILL)

    def _failed(self, reason: str, details: str = "", *, may_pass: bool = False) -> Failed:
        path = self._spec.path
        return Failed(f"environment {path} {reason}{details}", FunctionFailure(path, reason, may_pass))


class Program(NamedTuple):
    """The program that a process of environments has loaded before it is forked."""

    path: str
    """Import path of the environment."""
    tool_parser: str | None
    """vLLM's parser of calls of its tools."""


class EnvironmentPool:
    """The processes of the environments of one stage. They start when they are first needed, on one event loop."""

    def __init__(self, config: EnvironmentsConfig, tokenizer: Path | None = None) -> None:
        """Create it without starting a process.

        Args:
            config: bounds of the processes.
            tokenizer: folder of the policy's tokenizer, for environments whose tools are called in a format of vLLM's
                (`EnvironmentSpec.tool_parser`); None: such environments fail.
        """
        self._config = config
        self._tokenizer = tokenizer
        self._slots = asyncio.Semaphore(config.processes)
        self._workers: dict[Program, Workers] = {}
        self._idle: dict[Program, list[Worker]] = {}

    @contextlib.asynccontextmanager
    async def session(self, spec: EnvironmentSpec) -> AsyncIterator[Session]:
        """Yield a session with a process for one episode; wait for one where all are taken.

        Raises:
            CannotJudge: no process can be started.
        """
        async with self._slots:
            program = Program(spec.path, spec.tool_parser)
            workers = self._workers_of(program)
            worker = await self._take(program, workers)
            session = Session(spec, worker, workers, self._config)
            try:
                yield session
            finally:
                if session.reusable and worker.calls < RECYCLE_AFTER:
                    self._idle[program].append(worker)
                elif not session.died:
                    workers.discard(worker)

    async def _take(self, program: Program, workers: Workers) -> Worker:
        idle = self._idle.setdefault(program, [])
        while idle:
            worker = idle.pop()
            if not worker.reader.at_eof():
                break
            workers.discard(worker)
        else:
            worker = await workers.fork(0)
        worker.calls += 1
        return worker

    def _workers_of(self, program: Program) -> Workers:
        if program not in self._workers:
            self._workers[program] = Workers(
                program.path,
                self._config.memory_mib,
                locked_up=False,
                program="tasks.environments.worker",
                settings={**program._asdict(), "tokenizer": self._tokenizer and str(self._tokenizer)},
            )
        return self._workers[program]

    async def close(self) -> None:
        """End all processes."""
        await asyncio.gather(*(workers.close() for workers in self._workers.values()))
        self._idle.clear()
