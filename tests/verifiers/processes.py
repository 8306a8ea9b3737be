"""Processes that this process has started, as the kernel lists them."""

import os
import time
from contextlib import suppress
from pathlib import Path

GUARD_S = 60.0
HANG = r"\boxed{\int_0^1 e^{\sin(x^{x^x})} \cos(e^{x^7}) dx}"
"""A response of mathematics that is computed for longer than any limit of these tests."""
FORK_SERVER = "verifiers.worker import main"
SERVER = "code.server"


def children(pid):
    """Return the pids of the processes that the threads of one have started."""
    pids = []
    with suppress(OSError):  # it has ended
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with suppress(OSError):
                pids += [int(child) for child in (thread / "children").read_text().split()]
    return pids


def descendants(pid="self"):
    """Return the pids of all processes below one, by generation."""
    below = children(os.getpid() if pid == "self" else pid)
    return below + [deeper for child in below for deeper in descendants(child)]


def alive(pid):
    """True if the process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def fork_servers(pid="self"):
    """Return the pids of fork servers; a worker has the same command, and a fork server for its parent."""
    pids = [process for process in descendants(pid) if FORK_SERVER in command(process)]
    return [process for process in pids if parent(process) not in pids]


def workers(pid="self"):
    """Return the pids of worker processes."""
    return [worker for server in fork_servers(pid) for worker in descendants(server)]


def parent(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def cpu_ticks(pid):
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11])
    except OSError:
        return 0


def busy_worker(but=()):
    """Return the pid of a worker that computes, and has some time left: it is past its first budgets."""
    busy = []

    def one_computes():
        busy[:] = [pid for pid in workers() if cpu_ticks(pid) > 20 and pid not in but]
        return busy

    wait_until(one_computes)
    return busy[0]


def wait_until(condition):
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.02)
