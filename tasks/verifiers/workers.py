"""Starts and ends worker processes, which are forked from a fork server.

`worker` contains the code that runs in them. The fork server is started when it is first needed, and again after it has
ended. Its workers end with it, and it ends with this process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tasks.verifiers.fork_server import ForkServer, ForkServerLost
from tasks.verifiers.scores import CannotJudge
from tasks.verifiers.worker import LINE_BYTES

START_ATTEMPTS = 3
"""Attempts to fork one worker."""
START_SECONDS = 120.0
"""Seconds that the fork server may take to start."""
ANSWER_SECONDS = 60.0
"""Seconds that it may take to respond. It needs milliseconds, but may have to wait long for a core."""
RETRY_SECONDS = 30.0
"""Seconds after a failed start during which calls fail without another attempt."""
END_SECONDS = 5.0
"""Seconds that a fork server has to end the processes that its workers have started."""

logger = logging.getLogger(__name__)


@dataclass
class Counters:
    """Counters of the worker processes of one verifier.

    Attributes:
        started: workers started.
        died: workers that ended during a call or while idle, for any reason but an exceeded limit.
        killed: workers that the kernel ended for an exceeded limit.
        retries: calls repeated because their worker ended.
    """

    started: int = 0
    died: int = 0
    killed: int = 0
    retries: int = 0


@dataclass(eq=False)
class Worker:
    """Sends calls to one worker process, and returns its responses. `Workers` starts and ends the process."""

    pid: int
    server: ForkServer
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    calls: int = field(default=0)

    async def ask(self, line: bytes) -> dict[str, Any] | None:
        """Send a call, a line of JSON, and return the response, or None if the worker ended instead."""
        self.calls += 1
        try:
            self.writer.write(line)
            await self.writer.drain()
            answer = await self.reader.readline()
        except ConnectionError:
            return None
        return json.loads(answer) if answer.endswith(b"\n") else None


class Workers:
    """Forks workers of one kind. It belongs to one event loop."""

    def __init__(
        self,
        name: str,
        memory_mib: int,
        locked_up: bool,
        nltk_data: str | None = None,
        *,
        program: str = "tasks.verifiers.worker",
        settings: Mapping[str, Any] | None = None,
    ) -> None:
        """Create it without starting the fork server.

        Args:
            name: the name of what the workers work for, such as a verifier, for messages.
            memory_mib: MiB of address space of a worker.
            locked_up: True for workers without network and environment.
            nltk_data: the folder that contains NLTK's data.
            program: the module whose `main` is the fork server.
            settings: additional settings that the module reads. Optional. If None, the name of the verifier.
        """
        self.name = name
        self._program = program
        self._settings = {"memory_mib": memory_mib, "locked_up": locked_up, **(settings or {"verifier": name})}
        self._variables = _build_environment(locked_up, nltk_data)
        self._server: ForkServer | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closing: set[asyncio.Task[tuple[int, bool]]] = set()
        self._closed = False
        self._failed_at, self._refusal = -RETRY_SECONDS, ""

    async def wait_until_ready(self) -> None:
        """Start the fork server if necessary, and wait until it has warmed up; raises `CannotJudge` if it fails."""
        async with self._one_at_a_time:
            await self._started()

    async def fork(self, nice: int, *, overlapping: bool = False) -> Worker:
        """Fork a worker of this niceness; raises `CannotJudge` if none can be started.

        An `overlapping` worker takes calls of `async def` functions, any number at a time.
        """
        order = {"fork": nice, "overlapping": overlapping}
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            for _ in range(START_ATTEMPTS):
                async with self._one_at_a_time:
                    server = await self._started()
                    try:
                        answer, _ = await _send_order(server, order, [theirs.fileno()], ANSWER_SECONDS)
                    except ForkServerLost as error:
                        logger.warning("the fork server of %s workers %s", self.name, error)
                        continue
                reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
                return Worker(answer["pid"], server, reader, writer)
        ours.close()
        raise CannotJudge(f"no process for {self.name} could be started in {START_ATTEMPTS} attempts")

    async def end(self, worker: Worker, *, patience: float = 0.0) -> tuple[int, bool]:
        """Kill a worker if it still runs.

        Args:
            worker: the worker.
            patience: seconds to wait for it to end before it is killed.

        Returns:
            Its exit status, or -9 if it ended with its fork server, and whether it had to be killed.
        """
        worker.writer.close()
        with suppress(ForkServerLost):
            if worker.server is self._server:
                order = {"end": worker.pid, "patience": patience}
                answer, _ = await _send_order(worker.server, order, (), ANSWER_SECONDS)
                return int(answer["status"]), bool(answer["killed"])
        return -9, False

    def has(self, worker: Worker) -> bool:
        """Return True if the fork server of the worker still runs; the worker ends with it."""
        return worker.server is self._server and worker.server.runs

    def discard(self, worker: Worker) -> None:
        """End a worker without waiting for it."""
        task = asyncio.ensure_future(self.end(worker))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End the fork server and its workers permanently."""
        self._closed = True
        if self._server is not None:
            self._server.kill()  # this also ends its workers, and all waits for its responses
        await asyncio.gather(*self._closing)
        self._stop()

    async def _started(self) -> ForkServer:
        """Return the fork server, and start it if it does not run."""
        if self._closed:
            raise CannotJudge("the verifier pool was closed")
        if self._server is not None and self._server.runs:
            return self._server
        self._stop()
        if time.monotonic() - self._failed_at < RETRY_SECONDS:
            raise CannotJudge(self._refusal)
        command = [sys.executable, "-c", f"from {self._program} import main; main()"]
        end_seconds = 0.0 if self._settings["locked_up"] else END_SECONDS
        self._server = ForkServer(command, self._variables, end_seconds=end_seconds)
        began = time.monotonic()
        try:
            await _send_order(self._server, self._settings, (), START_SECONDS)
        except ForkServerLost:
            late = time.monotonic() - began >= START_SECONDS
            fault = f"takes longer to start than {START_SECONDS:g} s" if late else "ends as it starts: see stderr"
            self._stop()
            self._failed_at = time.monotonic()
            self._refusal = f"the fork server of {self.name} workers {fault}"
            raise CannotJudge(self._refusal) from None
        except BaseException:  # cancelled: nothing waits for its start any more
            self._stop()
            raise
        return self._server

    def _stop(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None


async def _send_order(
    server: ForkServer, order: Mapping[str, Any], descriptors: Sequence[int], seconds: float
) -> tuple[dict[str, Any], list[int]]:
    """Send a request in a thread, so that a hanging server does not block the event loop.

    If it is cancelled, a request with descriptors ends the server, because the thread may still send them, and they
    must stay open until then. Any other request continues, and its response is dropped.
    """
    sending = asyncio.ensure_future(asyncio.to_thread(server.order, order, descriptors, seconds=seconds))
    try:
        return await asyncio.shield(sending)
    except asyncio.CancelledError:
        sending.add_done_callback(lambda done: done.cancelled() or done.exception())  # retrieved: nothing logs it
        if descriptors:
            server.kill()
            await asyncio.gather(sending, return_exceptions=True)
        raise


def encode_call(call: Mapping[str, Any]) -> bytes:
    """Return a call as a line of JSON; raises `CannotJudge` if that is impossible."""
    try:
        return json.dumps(call).encode() + b"\n"
    except (TypeError, ValueError, RecursionError) as error:
        raise CannotJudge(f"the call is not JSON: {error}") from None


def _build_environment(locked_up: bool, nltk_data: str | None) -> dict[str, str]:
    """Return the environment variables of the fork server: what Python and NLTK need, or a copy of this one."""
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    if nltk_data is not None:
        ours["NLTK_DATA"] = nltk_data
    if not locked_up:
        return dict(os.environ) | ours
    with suppress(KeyError):
        ours["PYTHONDONTWRITEBYTECODE"] = os.environ["PYTHONDONTWRITEBYTECODE"]
    return ours | {"LANG": "C.UTF-8", "HOME": "/nonexistent"}
