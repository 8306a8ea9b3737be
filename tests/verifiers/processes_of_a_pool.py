"""The processes that pools of this process have started, as the kernel lists them."""

import os
import time
from pathlib import Path

GUARD_S = 60.0
TEMPLATE = "worker.main"
SERVER = "code.server"


def descendants(pid="self"):
    """Numbers of all processes below one, by generation."""
    pid = os.getpid() if pid == "self" else pid
    found = []
    for thread in Path(f"/proc/{pid}/task").iterdir():
        try:
            found += [int(child) for child in (thread / "children").read_text().split()]
        except OSError:
            continue
    return found + [below for child in found if Path(f"/proc/{child}").exists() for below in descendants(child)]


def command(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def templates(pid="self"):
    """Processes that workers are forked from; a worker has the same command, and a template for its parent."""
    found = [each for each in descendants(pid) if TEMPLATE in command(each)]
    return [each for each in found if parent(each) not in found]


def workers(pid="self"):
    """Worker processes."""
    return [child for each in templates(pid) for child in descendants(each)]


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
    """The number of a worker that computes, and has some time left: it is past its first grants."""
    found = []

    def one_computes():
        found[:] = [pid for pid in workers() if cpu_ticks(pid) > 20 and pid not in but]
        return found

    wait_until(one_computes)
    return found[0]


def wait_until(condition):
    deadline = time.monotonic() + GUARD_S
    while not condition():
        assert time.monotonic() < deadline, "never happened"
        time.sleep(0.02)
