"""A pod on this machine: a command with a memory limit that it sees, and with `/dev/shm` and process ids of its own."""

from __future__ import annotations

import contextlib
import os
import platform
import shutil
import subprocess
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil

from tasks.machine.memory_limit import GIB, MOUNTS
from tests.training.processes import SHARED, memory, role

TOOLS = ("unshare", "mount", "bash")
SAMPLE_SECONDS = 1.0
UNSHARE = ("unshare", "--mount", "--cgroup", "--pid", "--fork", "--mount-proc", "--kill-child")
JOIN = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
"""A group's folder and a command are its arguments."""
SET_UP = f'mount --bind "$0" "$1" && mount -t tmpfs -o size="$2"m tmpfs {SHARED} && shift 2 && exec "$@"'
"""Arguments are the group's folder, that of the group that a pod takes for its own, MiB of shared memory, a command."""


def missing() -> str:
    """Return why no pod can be made here, as a sentence; empty if one can."""
    if platform.system() != "Linux":
        return f"pods are made of Linux's control groups, and this is {platform.system()}"
    if os.geteuid() != 0:
        return "pods are made by root"
    if lacking := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"pods are made with {', '.join(lacking)}, which is not here"
    try:
        with _group(GIB) as (folder, _):
            tried = subprocess.run([*UNSHARE, "true"], capture_output=True, text=True)
            return tried.stderr.strip() or ("" if _limit_file(folder).exists() else "no control group limits memory")
    except OSError as error:
        return f"no control group can be made here: {error}"


@dataclass(frozen=True)
class Sample:
    """The memory of a pod at a moment.

    Attributes:
        used: what Ray's monitor counts, GiB: all memory but files that the kernel can drop.
        by_process: GiB of the processes, by what they are, what several share divided among them.
        mark: what the test's own function returned.
    """

    used: float
    by_process: dict[str, float]
    mark: Any


class Pod:
    """A pod with a memory limit.

    Attributes:
        samples: the memory while a command runs.
        kills: number of processes that the kernel has killed for memory.
    """

    def __init__(self, memory_gib: float, shm_mib: int = 64, mark: Callable[[], Any] = lambda: None) -> None:
        """Make no pod yet: `run` does.

        Args:
            memory_gib: the limit.
            shm_mib: size of `/dev/shm`, which counts as memory; Kubernetes gives 64 MiB unless it is asked.
            mark: called at each sample, for its `mark`.
        """
        self._limit, self._shm, self._mark = int(memory_gib * GIB), shm_mib, mark
        self.samples: list[Sample] = []
        self.kills = 0

    @property
    def peak(self) -> Sample:
        """The sample with the most memory."""
        return max(self.samples, key=lambda sample: sample.used)

    def run(self, command: list[str], environment: Mapping[str, str], folder: Path, timeout: float) -> int:
        """Run a command in a folder, whose `log.txt` takes what it prints, until it ends; return its exit status."""
        log = folder / "log.txt"
        with _group(self._limit) as (group, mount), log.open("w") as output:
            entered = ["bash", "-c", JOIN, str(group), *UNSHARE, "bash", "-c", SET_UP, str(group), str(mount)]
            process = subprocess.Popen(
                [*entered, str(self._shm), *command],
                cwd=folder,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
            ended = threading.Event()
            sampler = threading.Thread(target=self._sample, args=(group, ended))
            sampler.start()
            try:
                return process.wait(timeout)
            finally:
                process.kill()  # and, by `--kill-child`, everything in the pod
                ended.set()
                sampler.join()
                self.kills = _kills(group)

    def _sample(self, group: Path, ended: threading.Event) -> None:
        while not ended.wait(SAMPLE_SECONDS):
            self.samples.append(Sample(_used(group), _processes(group), self._mark()))


@contextlib.contextmanager
def _group(limit: int) -> Iterator[tuple[Path, Path]]:
    """Make a control group with a limit; yields its folder, and that of the group that a pod takes for its own."""
    mount = MOUNTS / "memory" if (MOUNTS / "memory").is_dir() else MOUNTS
    for abandoned in mount.glob("rlvr-pod-*"):  # of tests that were killed
        with contextlib.suppress(OSError):  # it has processes
            abandoned.rmdir()
    folder = mount / f"rlvr-pod-{os.getpid()}-{threading.get_ident()}"
    folder.mkdir()
    try:
        _limit_file(folder).write_text(str(limit))
        yield folder, mount
    finally:
        _remove(folder)


def _limit_file(folder: Path) -> Path:
    return folder / ("memory.limit_in_bytes" if folder.parent.name == "memory" else "memory.max")


def _remove(folder: Path) -> None:
    """Remove a group, whose processes may take a moment to end."""
    for _ in range(100):
        with contextlib.suppress(OSError):
            folder.rmdir()
            return
        threading.Event().wait(0.1)


def _used(folder: Path) -> float:
    """Return the GiB that Ray's monitor counts (`ray._private.utils.get_cgroup_used_memory`)."""
    stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines())
    first = folder.parent.name == "memory"
    usage = int((folder / ("memory.usage_in_bytes" if first else "memory.current")).read_text())
    files = ("total_inactive_file", "total_active_file") if first else ("inactive_file", "active_file")
    return (usage - sum(int(stat[name]) for name in files)) / GIB


def _kills(folder: Path) -> int:
    file = folder / ("memory.oom_control" if folder.parent.name == "memory" else "memory.events")
    return int(dict(line.split() for line in file.read_text().splitlines())["oom_kill"])


def _processes(folder: Path) -> dict[str, float]:
    """Return the GiB of the pod's processes by what they are; what several share is divided among them."""
    found: defaultdict[str, float] = defaultdict(float)
    for pid in map(int, (folder / "cgroup.procs").read_text().split()):
        with contextlib.suppress(psutil.Error, OSError):  # it has just ended
            found[role(psutil.Process(pid))] += memory(pid) * 1e6 / GIB
    return dict(found)
