"""Implements the server side of a fork server: forks processes and ends them on request."""

from __future__ import annotations

import json
import os
import signal
import socket
from collections.abc import Callable
from typing import Any

MESSAGE_BYTES = 1 << 16
"""Maximum length of a message on a control socket, in bytes."""
MAX_DESCRIPTORS = 8
"""Maximum number of descriptors in a request."""

Fork = Callable[[dict[str, Any], list[int], bool], tuple[dict[str, Any], list[int]]]
"""Forks a process, given the request, the descriptors that came with it, and whether no earlier fork is left.

It returns the response, with the pid, and the descriptors to send with it. All descriptors are closed afterwards."""


def obey(control: socket.socket, fork: Fork) -> None:
    """Handle requests until the parent closes the control socket."""
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
    """Kill a child if it still runs. Return its exit status, negative for a signal, and whether it was killed."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return {"status": os.waitstatus_to_exitcode(status), "killed": not ended}
