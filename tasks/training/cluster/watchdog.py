"""Runs a watchdog process that kills Ray's remaining processes after the driver of a run has ended for any reason.

Most of Ray's processes end with the driver. But a node's agents wait for the raylet and then for the GCS, for a minute
each, and keep the node's ports.
Processes of a cluster that existed before the run are not children of the driver, and are not killed.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from pathlib import Path
from typing import IO

import psutil

CLOCK_SECONDS = 1.0
"""Maximum difference in seconds between two readings of a process's start time."""

_open: list[IO[bytes]] = []
"""Standard inputs of watchdogs. They are closed when this process ends for any reason."""


def watch() -> None:
    """Start a process that kills the Ray processes below this one if they outlive it."""
    import ray

    files = str(Path(ray.__file__).parent)
    below = [child for child in psutil.Process().children(recursive=True) if _is_rays(child, files)]
    command = [sys.executable, __file__, *(f"{child.pid}:{child.create_time()}" for child in below)]
    # A separate session does not receive Ctrl-C.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
    process.wait()  # the fork continues as a child of init, because it outlives this process
    assert process.stdin is not None
    _open.append(process.stdin)


def _is_rays(process: psutil.Process, files: str) -> bool:
    with contextlib.suppress(psutil.Error):  # it has just ended
        return any(part.startswith((files, "ray::")) for part in process.cmdline())
    return False


def _wait_and_kill(processes: list[str]) -> None:
    sys.stdin.read()
    for entry in processes:
        pid, began = entry.split(":")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(began)) < CLOCK_SECONDS:
                process.kill()


if __name__ == "__main__" and os.fork() == 0:
    _wait_and_kill(sys.argv[1:])
