"""Sets limits that the kernel enforces for worker processes. Linux only."""

from __future__ import annotations

import ctypes
import os
import resource
import signal
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from tasks.verifiers.code.inside import confine

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_UNLIMITED_SECONDS = 1 << 30
"""CPU seconds of a process that sets a limit for each call."""
_FILE_BYTES, _OPEN_FILES = 1 << 20, 256


def die_with_parent(number: signal.Signals = signal.SIGKILL) -> None:
    """Let the kernel send this process a signal when the thread that started it ends, even by SIGKILL."""
    parent = os.getppid()
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, number)
    if os.getppid() != parent:  # it ended before the signal was set
        os._exit(1)


def adopt_orphans() -> None:
    """Make this process the parent of its descendants whose own parents end, also if they have left its group."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1)


def end_children(spared: Collection[int] = ()) -> None:
    """Kill all children of this process but some. With `adopt_orphans`, their descendants become its children then."""
    while others := list_children() - {*spared}:
        for pid in others:
            with suppress(ProcessLookupError, ChildProcessError):
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)


def list_children() -> set[int]:
    """Return the pids of the children of this process."""
    lists = Path("/proc/self/task").glob("*/children")
    return {int(pid) for listed in lists for pid in listed.read_text().split()}


def prefer_for_out_of_memory(process: int | str = "self") -> None:
    """Let the kernel kill this or another process, and its forks, before all others when memory runs out."""
    # Some containers have no writable /proc; the memory limits apply anyway.
    with suppress(OSError), open(f"/proc/{process}/oom_score_adj", "w") as stream:
        stream.write("1000")


def limit_memory(size: int) -> None:
    """Limit the address space of this process, in bytes."""
    resource.setrlimit(resource.RLIMIT_AS, (size, size))


def lock_up() -> None:
    """Restrict this process to computing and reading files: no network, programs, processes or writing.

    Raises:
        OSError: the kernel refused.
    """
    size, _ = resource.getrlimit(resource.RLIMIT_AS)
    limits = confine.Limits(_UNLIMITED_SECONDS, size, file_bytes=_FILE_BYTES, open_files=_OPEN_FILES)
    confine.confine(limits, ["/"], None, landlock=confine.read_landlock_version() >= confine.OLDEST_LANDLOCK)
