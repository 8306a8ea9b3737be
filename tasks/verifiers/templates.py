"""The lane's ends of its processes: the warm template, and the workers that are forked from it.

`worker` has the code of their other ends. A template is started when it is first needed, and again after it has ended;
its workers end with it, and it ends with this process.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from tasks.verifiers.scores import CannotJudge
from tasks.verifiers.worker import LINE_BYTES, MESSAGE_BYTES

START_ATTEMPTS = 3
"""Attempts to fork one worker."""
START_SECONDS = 120.0
"""Seconds that a template may take to start."""
RETRY_SECONDS = 30.0
"""Seconds after a start that failed during which calls are refused without another attempt."""

logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Worker:
    """The lane's end of one worker process."""

    pid: int
    template: subprocess.Popen[bytes]
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    calls: int = field(default=0)

    async def ask(self, line: bytes) -> dict[str, Any] | None:
        """Send a call, a line of JSON, and return the answer; None where the worker ended instead."""
        self.calls += 1
        try:
            self.writer.write(line)
            await self.writer.drain()
            answer = await self.reader.readline()
        except ConnectionError:
            return None
        return json.loads(answer) if answer.endswith(b"\n") else None


class Template:
    """The lane's end of the template process; started when first needed, and again after it has ended."""

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
        """Create it without starting the process.

        Args:
            name: what its workers work for, such as a verifier, for messages.
            memory_mib: MiB of address space of a worker.
            locked_up: True for workers with neither network nor environment.
            nltk_data: the folder in which NLTK looks for its data.
            program: the module whose `main` is the process.
            settings: what the module reads of its settings beside these; None: the verifier's name.
        """
        self.name = name
        self._program = program
        self._settings = {"memory_mib": memory_mib, "locked_up": locked_up, **(settings or {"verifier": name})}
        self._environment = _environment(locked_up, nltk_data)
        self._process: subprocess.Popen[bytes] | None = None
        self._control: socket.socket | None = None
        self._one_at_a_time = asyncio.Lock()
        self._closing: set[asyncio.Task[int]] = set()
        self._closed = False
        self._failed_at, self._refusal = -RETRY_SECONDS, ""

    async def ready(self) -> None:
        """Start the process if need be, and return once it is warm; raises `CannotJudge` where it cannot start."""
        async with self._one_at_a_time:
            await self._start()

    async def fork(self, nice: int, *, overlapping: bool = False) -> Worker:
        """Fork a worker of this niceness; raises `CannotJudge` where none can be started.

        One that is `overlapping` takes calls of `async def` functions, any number at a time.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        with theirs:
            for _ in range(START_ATTEMPTS):
                async with self._one_at_a_time:
                    process = await self._start()
                    answer = await self._exchange({"fork": nice, "overlapping": overlapping}, theirs.fileno())
                if answer is not None:
                    reader, writer = await asyncio.open_connection(sock=ours, limit=LINE_BYTES)
                    return Worker(answer["pid"], process, reader, writer)
        ours.close()
        raise CannotJudge(f"no process for {self.name} could be started in {START_ATTEMPTS} attempts")

    async def end(self, worker: Worker) -> int:
        """Kill a worker that has not ended by itself, and return its exit status; -9 if it ended with its template."""
        worker.writer.close()
        async with self._one_at_a_time:
            if worker.template is self._process and (answer := await self._exchange({"end": worker.pid})):
                return int(answer["status"])
        return -9

    def has(self, worker: Worker) -> bool:
        """Return whether the process that the worker was forked from runs; the worker ends with it."""
        return worker.template is self._process and worker.template.poll() is None

    def discard(self, worker: Worker) -> None:
        """End a worker without waiting for it."""
        task = asyncio.ensure_future(self.end(worker))
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    async def close(self) -> None:
        """End the template, with its workers, for good."""
        self._closed = True
        if self._process is not None:
            self._process.kill()  # its workers end with it, and so does every wait for its answer
        await asyncio.gather(*self._closing)
        self._stop()

    async def _start(self) -> subprocess.Popen[bytes]:
        if self._closed:
            raise CannotJudge("the verifier pool was closed")
        if self._process is not None and self._process.poll() is None:
            return self._process
        self._stop()
        if time.monotonic() - self._failed_at < RETRY_SECONDS:
            raise CannotJudge(self._refusal)
        fault = "ends as it starts: see stderr"
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        ours.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own module
                [sys.executable, "-c", f"from {self._program} import main; main()", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                env=self._environment,
            )
        self._control = ours
        try:
            async with asyncio.timeout(START_SECONDS):
                answer = await self._exchange(self._settings)
        except TimeoutError:
            answer, fault = None, f"takes longer to start than {START_SECONDS:g} s"
        if answer is None:
            self._stop()
            self._failed_at = time.monotonic()
            self._refusal = f"the process that {self.name} workers come from {fault}"
            raise CannotJudge(self._refusal)
        return self._process

    async def _exchange(self, order: dict[str, Any], *descriptors: int) -> dict[str, Any] | None:
        """Send an order to the template and return its answer; None where it has ended."""
        control = self._control
        if control is None:
            return None
        try:
            socket.send_fds(control, [json.dumps(order).encode()], descriptors)
            answer = await asyncio.get_running_loop().sock_recv(control, MESSAGE_BYTES)
        except OSError as error:
            logger.warning("the process that %s workers come from was lost: %s", self.name, error)
            answer = b""
        except BaseException:  # cancelled: the next one would read this answer
            self._stop()
            raise
        return json.loads(answer) if answer else None

    def _stop(self) -> None:
        if self._control is not None:
            self._control.close()
            self._control = None
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _environment(locked_up: bool, nltk_data: str | None) -> dict[str, str]:
    """Return the environment of the template: what Python and NLTK need to find their files, or all of ours."""
    ours = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "OPENBLAS_NUM_THREADS": "1"}
    if nltk_data is not None:
        ours["NLTK_DATA"] = nltk_data
    if not locked_up:
        return dict(os.environ) | ours
    with suppress(KeyError):
        ours["PYTHONDONTWRITEBYTECODE"] = os.environ["PYTHONDONTWRITEBYTECODE"]
    return ours | {"LANG": "C.UTF-8", "HOME": "/nonexistent"}
