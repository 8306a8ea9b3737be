"""Controls a fork server from its parent. A fork server is a process that has loaded what others need, and forks them.

    ForkServer ──{"fork": ..., ...} + descriptors──► fork server ──fork──► process
               ◄─{"pid": ...} + descriptors─────────
               ──{"end": pid}──────────────────────► kills the process, and returns how it ended

`code.inside.forking` implements the server side, which runs with the verifiers' modules (`workers`) or in the sandbox
(`code.sandbox`). Forked processes end with their fork server, and the fork server ends with the thread that started it.
"""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any, BinaryIO

from tasks.verifiers.code.inside.forking import MESSAGE_BYTES

MAX_DESCRIPTORS = 2
"""Maximum number of descriptors in a response."""


class ForkServerLost(RuntimeError):  # noqa: N818 - named after the event
    """The fork server did not start, does not answer, or has ended."""


class ForkServer:
    """One fork server. Requests wait for each other; `kill` may be called at any time from any thread."""

    def __init__(
        self,
        command: Sequence[str],
        variables: Mapping[str, str],
        *,
        folder: str | None = None,
        log: BinaryIO | None = None,
        process_group: int | None = None,
        end_seconds: float = 0.0,
    ) -> None:
        """Start the process, without waiting until it has warmed up.

        Args:
            command: the command; the descriptor of the control socket is appended to it.
            variables: its environment variables.
            folder, process_group: its working folder and process group, as for `subprocess.Popen`.
            end_seconds: seconds that it has after SIGTERM to end what its forks have started. If 0, it is killed.
            log: a file that gets its output. Optional. If None, it uses the output of this process.
        """
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._log = log
        self._one_at_a_time = threading.Lock()
        self._killed = False
        self._end_seconds = end_seconds
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603
                [*command, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=variables,
                cwd=folder,
                pass_fds=[theirs.fileno()],
                process_group=process_group,
            )

    @property
    def pid(self) -> int:
        """The pid of the process, in the PID namespace of this process."""
        return self._process.pid

    @property
    def runs(self) -> bool:
        """True if the process has neither ended nor been killed. A killed process ends a little later."""
        return not self._killed and self._process.poll() is None

    def order(
        self, order: Mapping[str, Any], descriptors: Sequence[int] = (), *, seconds: float
    ) -> tuple[dict[str, Any], list[int]]:
        """Send a request, and return the response with the descriptors that came with it.

        Raises:
            ForkServerLost: no response arrived within `seconds`. The fork server is then killed.
        """
        with self._one_at_a_time:
            try:
                self._control.settimeout(seconds)
                socket.send_fds(self._control, [json.dumps(order).encode()], list(descriptors))
                answer, received, _, _ = socket.recv_fds(self._control, MESSAGE_BYTES, MAX_DESCRIPTORS)
            except ConnectionError:  # it ended before the request, or while it was waiting
                answer, received = b"", []
            except OSError as error:
                self.kill()  # later requests then fail immediately
                raise ForkServerLost(f"does not answer: {error}{self._read_last_words()}") from None
        if not answer or not self.runs:
            self.kill()
            for descriptor in received:
                with suppress(OSError):
                    socket.close(descriptor)
            raise ForkServerLost(f"has ended{self._read_last_words()}")
        return json.loads(answer), received

    def kill(self) -> None:
        """Kill the fork server and all its forks; a waiting request then fails."""
        if self._end_seconds and not self._killed:
            self._process.terminate()
            last_resort = threading.Timer(self._end_seconds, self._process.kill)
            last_resort.daemon = True
            last_resort.start()
        elif not self._end_seconds:
            self._process.kill()
        self._killed = True

    def close(self) -> None:
        """End the fork server and all its forks, and close the descriptors."""
        self.kill()
        self._process.wait()
        with self._one_at_a_time:  # waiting requests have failed and no longer read
            self._control.close()
        if self._log is not None:
            self._log.close()

    def _read_last_words(self) -> str:
        if self._log is None or self._log.closed:
            return ""
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return f": {lines[-1][:300]}" if lines else ""
