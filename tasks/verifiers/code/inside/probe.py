"""Checks a new sandbox: a locked-up process tries forbidden operations, before any response runs."""

from __future__ import annotations

import _thread
import os
import socket
import sys
from collections.abc import Callable

MANY_THREADS = 200
"""A number of threads above the limit of any process."""
SMALL_STACK = 64 << 10
"""Stack of each of these threads, in bytes."""


def run() -> int:
    """Return the exit status: 0 if every attempt failed, 2 if one succeeded."""
    attempts: tuple[Callable[[], object], ...] = (
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
    for attempt in attempts:
        try:
            attempt()
        except OSError:
            continue
        return 2
    return 0


def _start_threads() -> None:
    """Start more threads than any process may have; raises `OSError` if they are limited."""
    _thread.stack_size(SMALL_STACK)
    held = _thread.allocate_lock()
    held.acquire()
    for _ in range(MANY_THREADS):
        try:
            _thread.start_new_thread(held.acquire, ())
        except RuntimeError as error:
            raise OSError(str(error)) from error
