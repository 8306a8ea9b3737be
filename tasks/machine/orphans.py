"""Ends a process when its parent is gone.

A killed parent does not shut down its children, and an engine would keep gigabytes of memory allocated.
"""

from __future__ import annotations

import multiprocessing
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

POLL_SECONDS = 1.0
"""Seconds between two checks of the parent's process id."""


def when_orphaned(parent: int, end: Callable[[], object]) -> None:
    """Start a daemon thread that calls `end` once the parent of this process is no longer the process `parent`.

    The kernel's signal (PR_SET_PDEATHSIG) is not used, because it is sent when the thread that started this process
    ends. That may be long before the end of the parent process.
    """
    _watch(lambda: os.getppid() == parent, end)


def when_abandoned(end: Callable[[], object]) -> None:
    """Start a daemon thread that calls `end` once the `multiprocessing` parent of this process has ended.

    It may be called while this process is still starting and its parent is already gone.
    """

    def has_parent() -> bool:
        parent = multiprocessing.parent_process()  # None while this process starts
        return parent is None or os.getppid() == parent.pid

    _watch(has_parent, end)


def when_leaderless(end: Callable[[], object]) -> None:
    """Start a daemon thread that calls `end` once the leader of this process's group has ended.

    This also works if there is a process between the two, or if this process was started while the leader was being
    killed. The group keeps the leader's process id, and no other process gets it while a member of the group lives.
    """
    leader = os.getpgrp()
    _watch(lambda: _is_alive(leader), end)


def _watch(holds: Callable[[], bool], end: Callable[[], object]) -> None:
    def watch() -> None:
        while holds():
            time.sleep(POLL_SECONDS)
        end()

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()


def _is_alive(pid: int) -> bool:
    """Return whether a process runs. A zombie process does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")
