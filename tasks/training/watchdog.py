"""A process beside the driver of a run that ends Ray's processes where the driver is killed.

Most of them see that by themselves at once. The agents of a node look for it for a minute, and hold on to its ports.
Where a cluster was there before the run, its processes are none of the driver's, and nothing is watched.
"""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

import psutil

CLOCK_SECONDS = 1.0
"""Two readings of the time at which one process began differ by less."""


@contextlib.contextmanager
def watched() -> Iterator[None]:
    """Should this process be killed within the block, what runs below it now is killed, too."""
    below = [f"{each.pid}:{each.create_time()}" for each in psutil.Process().children(recursive=True)]
    # Its standard input ends with this process, however that ends; a session of its own has no Ctrl-C.
    command = [sys.executable, __file__, *below]
    watchdog = subprocess.Popen(command, stdin=subprocess.PIPE, start_new_session=True)  # noqa: S603
    try:
        yield
    finally:
        watchdog.kill()
        watchdog.wait()
        assert watchdog.stdin is not None
        watchdog.stdin.close()


def _wait_and_kill(processes: list[str]) -> None:
    sys.stdin.read()
    for each in processes:
        pid, began = each.split(":")
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(int(pid))
            if abs(process.create_time() - float(began)) < CLOCK_SECONDS:
                process.kill()


if __name__ == "__main__":
    _wait_and_kill(sys.argv[1:])
