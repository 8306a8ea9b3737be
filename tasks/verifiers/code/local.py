"""Starts a code server for one run on this machine; it ends with the run."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from typing import Any

from tasks.verifiers.code.config import SERVER_OPTIONS, CodeConfig
from tasks.verifiers.scores import CannotJudge

START_SECONDS = 120.0
"""Seconds that the server may take to start."""
MAX_REASON_CHARS = 1000
"""Maximum length of the reason why a server could not start, in characters."""


class LocalServer:
    """The process of the server, and the Unix socket that it listens on."""

    def __init__(self, config: CodeConfig, workers: int) -> None:
        """Create it without starting the process; it will run `workers` programs at the same time."""
        self._options = {name: getattr(config, name) for name in SERVER_OPTIONS}
        self._workers = workers
        self._process: subprocess.Popen[bytes] | None = None
        self._folder: str | None = None

    @property
    def runs(self) -> bool:
        """True if the server has been started and has not ended."""
        return self._process is not None and self._process.poll() is None

    async def start(self) -> str:
        """Start a new server, and return the path of its socket once it listens.

        Raises:
            CannotJudge: it failed to start, with its reason, or did not start in time.
        """
        self.close()
        self._folder = tempfile.mkdtemp(prefix="rlvr-")
        path = os.path.join(self._folder, "code")
        reading, writing = os.pipe()
        with socket.socket(socket.AF_UNIX) as listener, open(writing, "wb") as theirs, open(reading, "rb") as ours:
            listener.bind(path)
            listener.listen(socket.SOMAXCONN)
            given = {"listener": listener.fileno(), "ready": theirs.fileno(), "workers": self._workers}
            self._process = subprocess.Popen(  # noqa: S603 - a module of this project
                [sys.executable, "-m", "tasks.verifiers.code.server", *_format_arguments(given | self._options)],
                stdin=subprocess.DEVNULL,
                pass_fds=[listener.fileno(), theirs.fileno()],
                env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            )
            theirs.close()
            try:
                async with asyncio.timeout(START_SECONDS):
                    message = await asyncio.to_thread(ours.read)  # until it is ready, or has ended
            except TimeoutError:
                self.close()  # this ends the read
                raise CannotJudge(f"the code server did not start in {START_SECONDS:g} s") from None
        if message != b"ready":
            self.close()
            raise CannotJudge(
                message.decode(errors="replace")[:MAX_REASON_CHARS] or "the code server ended as it started"
            )
        return path

    def close(self) -> None:
        """End the server and all processes in it."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = None


def _format_arguments(options: dict[str, Any]) -> list[str]:
    return [
        f"--{name.replace('_', '-')}={_format_value(value)}" for name, value in options.items() if value is not None
    ]


def _format_value(value: Any) -> str:
    return ",".join(value) if isinstance(value, list) else json.dumps(value).strip('"')
