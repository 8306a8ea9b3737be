"""Implements the server side of a fork server: forks processes and ends them on request."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Callable
from typing import Any

MESSAGE_BYTES = 1 << 16
"""Maximum length of a message on a control socket, in bytes."""
MAX_DESCRIPTORS = 8
"""Maximum number of descriptors in a request."""
POLL_SECONDS = 0.005
"""Interval in seconds at which a child is checked that may be about to end."""

Fork = Callable[[dict[str, Any], list[int], bool], tuple[dict[str, Any], list[int]]]
"""Forks a process, given the request, the descriptors that came with it, and whether no earlier fork is left.

It returns the response, with the pid, and the descriptors to send with it. All descriptors are closed afterwards."""


def handle_requests(control: socket.socket, fork: Fork, on_end: Callable[[set[int]], None] | None = None) -> None:
    """Handle requests until the parent closes the control socket.

    Args:
        control: the socket.
        fork: forks a process.
        on_end: called after a process has ended, with the pids of the others. Optional.
    """
    left: set[int] = set()
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, MAX_DESCRIPTORS)
        if not message:
            return
        order = json.loads(message)
        if "fork" in order:
            answer, along = fork(order, descriptors, not left)
            left.add(answer["pid"])
        else:
            answer, along = end(order["end"], order.get("patience", 0.0)), []
            left.discard(order["end"])
            if on_end is not None:
                on_end(left)
        socket.send_fds(control, [json.dumps(answer).encode()], along)
        for descriptor in (*descriptors, *along):
            os.close(descriptor)


def end(pid: int, patience: float = 0.0) -> dict[str, Any]:
    """Kill a child if it still runs after `patience` seconds.

    Returns:
        Its exit status, negative for a signal, and whether it was killed.
    """
    until = time.monotonic() + patience
    while True:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended or time.monotonic() >= until:
            break
        time.sleep(POLL_SECONDS)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return {"status": os.waitstatus_to_exitcode(status), "killed": not ended}
