"""A process beside the driver of a run that ends what is left of Ray when the driver has ended, however it ends.

Most of Ray's processes end with the driver. A node's agents look for a raylet that is gone, and then for a GCS that is
gone as well, for a minute each, and hold on to the node's ports.
Where a cluster was there before the run, its processes are none of the driver's, and nothing is watched.
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
"""Two readings of the time at which one process began differ by less."""

_open: list[IO[bytes]] = []
"""Standard inputs of watchdogs: they end with this process."""


def watch() -> None:
    """What of Ray runs below this process now is killed should it outlive this process."""
    import ray

    files = str(Path(ray.__file__).parent)
    below = [each for each in psutil.Process().children(recursive=True) if _is_rays(each, files)]
    command = [sys.executable, __file__, *(f"{each.pid}:{each.create_time()}" for each in below)]
    # A session of its own has no Ctrl-C.
    process = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
    process.wait()  # it goes on as nobody's child: who would wait for it is gone when it ends
    assert process.stdin is not None
    _open.append(process.stdin)


def _is_rays(process: psutil.Process, files: str) -> bool:
    with contextlib.suppress(psutil.Error):  # it has just ended
        return any(part.startswith((files, "ray::")) for part in process.cmdline())
    return False


def _wait_and_kill(processes: list[str]) -> None:
    sys.stdin.read()
    for each in processes:
        pid, began = each.split(":")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(began)) < CLOCK_SECONDS:
                process.kill()


if __name__ == "__main__" and os.fork() == 0:
    _wait_and_kill(sys.argv[1:])
