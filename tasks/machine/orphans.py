"""Ends a process whose parent is gone: a killed parent shuts nothing down, and an engine holds gigabytes."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable

POLL_SECONDS = 1.0
"""Seconds between two looks at the parent's process id."""


def when_orphaned(parent: int, end: Callable[[], object]) -> None:
    """Start a daemon thread that calls `end` once the parent of this process is no longer the process `parent`.

    The kernel's own signal (PR_SET_PDEATHSIG) is sent when the thread that started this process ends, which may be long
    before its process does.
    """

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(POLL_SECONDS)
        end()

    threading.Thread(target=watch, name="end-with-parent", daemon=True).start()
