"""The fork server's end of its control socket: forks processes and ends them, as it is told."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

MESSAGE_BYTES = 1 << 16
"""Longest message of a control socket, in bytes."""
MAX_DESCRIPTORS = 8
"""Most descriptors that come with an order."""

Fork = Callable[[dict[str, Any], list[int], bool], tuple[dict[str, Any], list[int]]]
"""Forks a process, given the order, the descriptors that came with it, and whether no earlier fork is left.

It returns the answer, with the pid, and the descriptors to send along. All descriptors are closed afterwards."""


def obey(control: socket.socket, fork: Fork) -> None:
    """Obey orders until the other end of the control socket is closed."""
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
            answer, along = end(order["end"]), []
            left.discard(order["end"])
        socket.send_fds(control, [json.dumps(answer).encode()], along)
        for descriptor in (*descriptors, *along):
            os.close(descriptor)


def end(pid: int) -> dict[str, Any]:
    """Kill a child that has not ended by itself, and return its exit status, negative for a signal, and if it was."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return {"status": os.waitstatus_to_exitcode(status), "killed": not ended}
