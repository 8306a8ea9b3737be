"""A locked-up process that tries the doors, before any response is let in."""

from __future__ import annotations

import _thread
import os
import socket
import sys
from collections.abc import Callable

MANY_THREADS = 200
"""More than any process may have."""
SMALL_STACK = 64 << 10


def run() -> int:
    """The exit status: 0 where every door is closed."""
    doors: tuple[Callable[[], object], ...] = (
        os.fork,
        lambda: socket.socket(socket.AF_INET, socket.SOCK_STREAM),
        lambda: socket.socket(socket.AF_UNIX, socket.SOCK_STREAM),
        lambda: socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM),
        lambda: os.kill(os.getppid(), 0),
        lambda: os.kill(-1, 0),
        lambda: os.execv(sys.executable, [sys.executable]),  # noqa: S606 - must fail
        lambda: os.listdir("/proc"),
        lambda: os.listdir("/etc"),
        lambda: os.open("/probe", os.O_CREAT | os.O_WRONLY),
        lambda: os.open(os.__file__, os.O_WRONLY),
        lambda: os.memfd_create("probe"),
        lambda: os.symlink("/", "link"),
        _start_threads,
    )
    for door in doors:
        try:
            door()
        except OSError:
            continue
        return 2
    return 0


def _start_threads() -> None:
    """As many as no process may have; ends as an `OSError` where they are bounded."""
    _thread.stack_size(SMALL_STACK)
    held = _thread.allocate_lock()
    held.acquire()
    for _ in range(MANY_THREADS):
        try:
            _thread.start_new_thread(held.acquire, ())
        except RuntimeError as error:
            raise OSError(str(error)) from error
