"""A process beside the driver of a run that ends what is left of Ray when the driver has ended, however it ends.

Most of Ray's processes end with the driver. A node's agents look for a raylet that is gone, and then for a GCS that is
gone as well, for a minute each, and hold on to the node's ports.
Where a cluster was there before the run, its processes are none of the driver's, and nothing is watched.
"""

from __future__ import annotations

import contextlib
import functools
import os
import subprocess
import sys
from typing import IO

import psutil

CLOCK_SECONDS = 1.0
"""Two readings of the time at which one process began differ by less."""


def watch() -> None:
    """What of Ray runs below this process now is killed should it outlive this process."""
    below = [each for each in psutil.Process().children(recursive=True) if _is_rays(each)]
    print(*(f"{each.pid}:{each.create_time()}" for each in below), file=_watchdog(), flush=True)


def _is_rays(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.Error):  # it has just ended
        return any(name in " ".join(process.cmdline()[:3]) for name in ("/ray/", "ray::"))
    return False


@functools.cache
def _watchdog() -> IO[str]:
    """Its standard input, which ends with this process."""
    # A session of its own has no Ctrl-C.
    process = subprocess.Popen(  # noqa: S603
        [sys.executable, __file__], stdin=subprocess.PIPE, text=True, start_new_session=True
    )
    process.wait()  # it goes on as nobody's child, as this process is gone when it ends
    assert process.stdin is not None
    return process.stdin


def _wait_and_kill() -> None:
    for each in sys.stdin.read().split():
        pid, began = each.split(":")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(began)) < CLOCK_SECONDS:
                process.kill()


if __name__ == "__main__" and os.fork() == 0:
    _wait_and_kill()
