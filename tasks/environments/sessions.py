"""Connects episodes to the processes that run their environments; `worker` implements the process side.

    EnvironmentPool ── session ──► Session: begin ──► AsksForTurn ──► turn ──► AsksFor... ──► Ended or Failed

Each concurrent episode has its own process, which is forked from one that has already loaded the environment and is
reused by later episodes. An environment that hangs, crashes or floods its connection affects only its own episode.
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
from tasks.failures import one_line
from tasks.generation.environment_spec import EnvironmentSpec
from tasks.verifiers.code.running import Execution
from tasks.verifiers.config import EnvironmentsConfig
from tasks.verifiers.scores import FunctionFailure
from tasks.verifiers.worker import OVERRUN_SIGNAL
from tasks.verifiers.workers import Worker, Workers

RECYCLE_AFTER = 1000
"""Episodes after which a process is replaced, which bounds leaks from one episode to the next."""

GRACE_SECONDS = 5.0
"""Seconds that an environment has to return after its own are over, before its process is ended."""
PATIENCE_SECONDS = 1.0
"""Seconds that a process whose connection is closed has to end, so that its exit status is its own."""


@dataclass(frozen=True)
class AsksForTurn:
    """The environment inserts `messages`, or restarts the conversation with them (`anew`), and requests a turn."""

    messages: list[dict[str, str]]
    anew: bool = False


@dataclass(frozen=True)
class AsksForJudgement:
    """The environment requests the verifier's score of `text`."""

    text: str


@dataclass(frozen=True)
class AsksToRun:
    """The environment requests a program run in the sandbox, and at most `output_chars` characters of its output."""

    program: str
    output_chars: int


@dataclass(frozen=True)
class Ended:
    """The environment has returned.

    Attributes:
        reward: the reward, or None if the verifier scores the episode; `passed` is unused then.
        passed: whether the environment reports the episode as a success.
        overran: the reason if it returned because its seconds were over, else empty.
    """

    reward: float | None = None
    passed: bool = False
    overran: str = ""


@dataclass(frozen=True)
class Overran:
    """The environment exceeded a limit of time and did not return, so its process was ended; the episode ends here."""

    reason: str


@dataclass(frozen=True)
class Failed:
    """The environment failed.

    Attributes:
        error: error message to display.
        failure: the failure without details that depend on the episode, or None if the environment did not cause it.
    """

    error: str
    failure: FunctionFailure | None


Request = AsksForTurn | AsksForJudgement | AsksToRun | Ended | Overran | Failed


class Session:
    """The session of one episode.

    Every method returns the environment's next request. Failures of the environment are returned, never raised.

    Attributes:
        reusable: True if the process has finished the episode and can run another.
        died: True if the process has ended.
        worn: True if the episode failed, and the cause may be what earlier episodes of the process have left in it.
    """

    def __init__(self, spec: EnvironmentSpec, worker: Worker, workers: Workers, config: EnvironmentsConfig) -> None:
        self._spec = spec
        self._worker = worker
        self._workers = workers
        self._config = config
        self._seconds = spec.seconds + GRACE_SECONDS
        # The pool has already counted this episode.
        self._is_fresh = worker.calls <= 1
        self.reusable = False
        self.died = False
        self.worn = False

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
                "seconds": self._spec.seconds,
                "turns": self._spec.turns,
            }
        )

    async def turn(self, turn: Turn) -> Request:
        """Send the requested turn."""
        return await self._exchange({"turn": vars(turn)})

    async def over(self, reason: str) -> Request:
        """Refuse a turn because a limit was reached."""
        return await self._exchange({"over": reason})

    async def judgement(self, judgement: Judgement) -> Request:
        """Send the requested score."""
        return await self._exchange({"judgement": vars(judgement)})

    async def execution(self, execution: Execution) -> Request:
        """Send the output of the requested program."""
        return await self._exchange({"execution": vars(execution)})

    async def refuse(self, reason: str, *, may_pass: bool) -> Request:
        """Refuse to score a text or to run a program.

        Args:
            reason: the error message.
            may_pass: True if a retry may succeed.
        """
        return await self._exchange({"refused": reason, "may_pass": may_pass})

    async def _exchange(self, message: Mapping[str, Any]) -> Request:
        """Send a message and return the next request, within the remaining wall-clock seconds."""
        clock = asyncio.get_running_loop().time
        began = clock()
        # Until the environment has ended, its process may still run code of this episode.
        self.reusable = False
        try:
            async with asyncio.timeout(self._seconds):
                self._worker.writer.write(json.dumps(message).encode() + b"\n")
                await self._worker.writer.drain()
                line = await self._worker.reader.readline()
        except TimeoutError:
            return Overran(f"took more than {self._spec.seconds:g} s")
        except ConnectionError:
            return await self._handle_death()
        except ValueError as error:  # the line is longer than the limit of a message
            return self._failed(f"sent an invalid message: {one_line(error)}")
        # Only the environment's own time counts, and not the time when it waits for a turn or a score.
        self._seconds -= clock() - began
        # `readline` returns what it has, without an error, when the connection is closed.
        if not line.endswith(b"\n"):
            return await self._handle_death()
        try:
            return self._request(json.loads(line))
        except (ValueError, LookupError, TypeError, RecursionError) as error:  # the environment has written it itself
            self.reusable = False
            return self._failed(f"sent an invalid message: {type(error).__name__}")

    def _request(self, message: Mapping[str, Any]) -> Request:
        if "generate" in message:
            return AsksForTurn(message["generate"], message["anew"])
        if "judge" in message:
            return AsksForJudgement(message["judge"])
        if "run" in message:
            return AsksToRun(message["run"], message["output_chars"])
        # A task that the environment left running would run on in the next episode.
        self.reusable = not message["retire"]
        if "end" in message:
            return Ended(**(message["end"] or {}), overran=message["overran"])
        # In a fresh process there were no earlier episodes: the environment itself needs too much.
        self.worn = "worn" in message and not self._is_fresh
        fault = message["fault"]
        return self._failed(fault["reason"], fault["details"], may_pass=fault["may_pass"])

    async def _handle_death(self) -> Request:
        # Without patience, the process would be killed and its exit status would be the one of the kill.
        status, was_running = await self._workers.end(self._worker, patience=PATIENCE_SECONDS)
        self.died = True
        # Without a `FunctionFailure`: the environment did not cause it, and the episode may be played again.
        if not self._workers.has(self._worker):
            path = self._spec.path
            return Failed(f"environment {path} was lost with the process that its processes are forked from", None)
        # The kernel sends this signal when the timer of CPU seconds expires, which the process has set itself.
        if status == -OVERRUN_SIGNAL:
            limit = self._config.cpu_seconds
            return Overran(f"took more than {limit:g} s of CPU time (verifiers.environments)")
        self.worn = not self._is_fresh
        if was_running:
            return self._failed("closed the connection of its process")
        # SIGKILL comes from outside: from the kernel when the machine is out of memory, or from an operator
        return self._failed(f"ended its process (status {status})", may_pass=status == -signal.SIGKILL)

    def _failed(self, reason: str, details: str = "", *, may_pass: bool = False) -> Failed:
        path = self._spec.path
        return Failed(f"environment {path} {reason}{details}", FunctionFailure(path, reason, may_pass))


class Program(NamedTuple):
    """The program that an environment process loads before it is forked."""

    path: str
    """Import path of the environment."""
    tool_parser: str | None
    """Name of vLLM's parser for its tool calls. Optional."""


class EnvironmentPool:
    """The environment processes of one stage. They start when they are first needed, on one event loop."""

    def __init__(self, config: EnvironmentsConfig, tokenizer: Path | None = None) -> None:
        """Create the pool without starting a process.

        Args:
            config: limits of the processes.
            tokenizer: folder of the policy's tokenizer, which environments with `EnvironmentSpec.tool_parser` need.
                Optional. If None, such environments fail.
        """
        self._config = config
        self._tokenizer = tokenizer
        self._slots = asyncio.Semaphore(config.processes)
        self._workers: dict[Program, Workers] = {}
        self._idle: dict[Program, list[Worker]] = {}

    @contextlib.asynccontextmanager
    async def session(self, spec: EnvironmentSpec, *, fresh: bool = False) -> AsyncIterator[Session]:
        """Yield a session with a process for one episode, and wait for one if all are in use.

        Args:
            spec: the environment.
            fresh: True for a process that has run no episode.

        Raises:
            CannotJudge: If no process can be started.
        """
        async with self._slots:
            program = Program(spec.path, spec.tool_parser)
            workers = self._get_workers(program)
            worker = await self._take(program, workers, fresh=fresh)
            session = Session(spec, worker, workers, self._config)
            try:
                yield session
            finally:
                # A process whose episode was abandoned is ended too, because its environment may still run.
                if session.reusable and worker.calls < RECYCLE_AFTER:
                    self._idle[program].append(worker)
                elif not session.died:
                    workers.discard(worker)

    async def _take(self, program: Program, workers: Workers, *, fresh: bool) -> Worker:
        idle = self._idle.setdefault(program, [])
        if fresh and idle:
            workers.discard(idle.pop())  # the number of processes stays
        while idle and not fresh:
            worker = idle.pop()
            # An idle process may have ended meanwhile, for example when the machine was out of memory.
            if not worker.reader.at_eof():
                break
            workers.discard(worker)
        else:
            worker = await workers.fork(0)
        worker.calls += 1
        return worker

    def _get_workers(self, program: Program) -> Workers:
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
