"""Watches the memory limit of this process's control group, and explains why processes were killed or did not start.

A killed process leaves no message: Ray and vLLM report that it "died unexpectedly". The control group counts the kills,
in both versions of the kernel's interface:

    version 2   memory.max              memory.events        oom_kill 1
    version 1   memory.limit_in_bytes   memory.oom_control   oom_kill 1

The driver of a run also receives readings from other nodes (`tasks.machine.ray_memory`).
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import logging
import threading
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from tasks.failures import InfrastructureError, MistakeError, list_causes

logger = logging.getLogger(__name__)

MOUNTS = Path("/sys/fs/cgroup")
"""Folder of the control groups."""
PROCESSES = Path("/proc")
"""Folder with the kernel's files about every process and the machine's memory."""
GIB = 2**30
"""Bytes of a GiB."""
POLL_SECONDS = 1.0
"""Seconds between two readings of the number of kills and the sizes of the processes."""
HERE = ""
"""Name of this process's node. Other nodes are named by their addresses."""
RECENT_SECONDS = 15.0
"""Seconds after a kill during which the loss of a process is attributed to it.

Ray reports the death of a process some seconds late.
"""
LARGEST = 4
"""Maximum number of processes that a message names."""
SMALLEST = 0.1
"""Size in GiB below which a process is not named in a message."""
REACHED = 0.95
"""Minimum share of its limit that a group has used if the kernel kills because of the limit."""
UNLIMITED = 2**60
"""Bytes. A limit of at least this size in version 1 of the interface means that the group is not limited."""

OTHER_REMEDY = "lower learner.micro_batch_tokens or cpu_kv_cache_gib of the engine"
"""Advice for a message if no option makes the largest process smaller."""
KINDS = (
    ("tasks.verifiers.chat.launcher", "judge's server", "lower verifiers.judge.server.cpu_kv_cache_gib"),
    ("LearnerRank", "learner rank", "lower learner.micro_batch_tokens"),
    ("EngineCore", "engine", "lower cpu_kv_cache_gib of the engine"),
    ("ActorProcess", "engine's actor", "lower cpu_kv_cache_gib of the engine"),
    ("RewardProcess", "reward process", "lower rewards.workers"),
    ("RelayProcess", "relay", OTHER_REMEDY),
    ("tasks.verifiers.worker", "verifier's worker", "lower rewards.workers"),
)
"""A part of the command line, the name in a message and the option that reduces the size, for each kind of process."""


class MemoryLimitError(MistakeError):
    """The work needs more memory than the limit: processes were repeatedly killed or did not start because of it."""


class ShortOfMemoryError(InfrastructureError):
    """A process did not start for lack of memory that other processes use and may free."""


class Process(NamedTuple):
    """A process of the control group: its name in a message, the option that reduces its size, and its memory."""

    name: str
    remedy: str
    gib: float

    @classmethod
    def from_command(cls, command: str, gib: float) -> Self:
        """Create the process from its command line and memory."""
        name, remedy = next(
            ((name, remedy) for part, name, remedy in KINDS if part in command), (_shorten(command), OTHER_REMEDY)
        )
        return cls(name, remedy, gib)


class Reading(NamedTuple):
    """The state of a control group at one moment, as read from its files."""

    limit: int | None
    """The limit in bytes, or None if there is none."""
    sizes: Mapping[int, Process]
    """The processes, by id."""
    kills: int = 0
    """Number of processes that the kernel has killed for lack of memory so far."""
    peak: int | None = None
    """Peak memory of the group in bytes, or None if the kernel does not report it."""

    @property
    def of_the_machine(self) -> Self:
        """Return the reading without its limit if it was never reached.

        The kernel then killed because of the machine's memory.
        """
        is_reached = self.limit is None or self.peak is None or self.peak >= REACHED * self.limit
        return self if is_reached else self._replace(limit=None)


@dataclass(frozen=True)
class MemoryLimit:
    """Reads the files of a control group: its limit, its processes, and how many of them the kernel has killed.

    Attributes:
        folder: the control group's folder.
        top: the folder of the outermost group whose limit applies: `folder` or one of its parents.
        processes: the folder with the kernel's files about processes.
    """

    folder: Path
    top: Path
    processes: Path = PROCESSES

    @classmethod
    def from_this_process(cls, mounts: Path = MOUNTS, processes: Path = PROCESSES) -> Self:
        """Return the control group of this process. In a container it is the outermost visible group."""
        top, path = mounts, ""
        for line in _read_text(processes / "self" / "cgroup").splitlines():
            _, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(","):  # if a system has both versions, memory is in version 1
                top, path = mounts / "memory", name
                break
            if not controllers:  # the only line of version 2
                path = name
        # In a container, the path may be that of the host, which does not exist here.
        folder = top / path.strip("/")
        return cls(folder if folder.is_dir() else top, top, processes)

    def limit(self) -> int | None:
        """Return the lowest limit of the group and its outer groups in bytes, or None if there is none."""
        # A group without a limit may be inside a limited group, such as that of a pod or a slice of systemd.
        folders = [self.folder, *(outer for outer in self.folder.parents if outer.is_relative_to(self.top))]
        limits = [
            int(text)
            for folder in folders
            for name in ("memory.max", "memory.limit_in_bytes")
            if (text := _read_text(folder / name).strip()).isdecimal()  # version 2 has "max" for no limit
        ]
        return min((limit for limit in limits if limit < UNLIMITED), default=None)

    def available(self) -> int:
        """Return the bytes that all processes may use: the minimum of the limit and the machine's memory."""
        return min(filter(None, (self.limit(), self.machine())))

    def machine(self) -> int:
        """Return the machine's memory in bytes."""
        # Systems other than Linux have no such file, and then no limit is known.
        return 1024 * int(_read_field(self.processes / "meminfo", "MemTotal:") or UNLIMITED // 1024)

    def kills(self) -> int:
        """Return the number of the group's processes that the kernel has killed for lack of memory so far."""
        texts = (_read_field(self.folder / name, "oom_kill") for name in ("memory.events", "memory.oom_control"))
        return sum(int(text) for text in texts if text)

    def sizes(self) -> dict[int, Process]:
        """Return the running processes of the group, by id."""
        pids = map(int, _read_text(self.folder / "cgroup.procs").split())
        return {pid: process for pid in pids if (process := self._process(pid))}

    def read(self) -> Reading:
        """Return the current state of the group, from its files."""
        texts = (_read_text(self.folder / name).strip() for name in ("memory.peak", "memory.max_usage_in_bytes"))
        peak = next((int(text) for text in texts if text.isdecimal()), None)
        return Reading(self.limit(), self.sizes(), self.kills(), peak)

    def cached(self) -> int:
        """Return the bytes of cached files in the group's memory, which the kernel drops when memory is needed."""
        fields = ("total_inactive_file", "total_active_file", "inactive_file", "active_file")  # version 1 has all four
        # The first two that exist: in version 1 the totals include the groups below, and in version 2 all fields do.
        sizes = [int(text) for name in fields if (text := _read_field(self.folder / "memory.stat", name))]
        return sum(sizes[:2])

    def _process(self, pid: int) -> Process | None:
        # Without shared pages, which would be counted in each process.
        kilobytes = _read_field(self.processes / str(pid) / "status", "RssAnon:")
        if kilobytes is None:
            return None
        command = self._command(pid)
        if "EngineCore" in command:  # the leader of its process group may be the server of an LLM judge
            state = _read_text(self.processes / str(pid) / "stat").rpartition(")")[2].split()
            command = f"{self._command(int(state[2])) if state else ''} {command}"
        return Process.from_command(command, int(kilobytes) * 1024 / GIB)

    def _command(self, pid: int) -> str:
        return _read_text(self.processes / str(pid) / "cmdline").replace("\0", " ").strip()


class MemoryWatch:
    """Watches kills in this process's control group, in a separate thread, and receives readings of other nodes.

    Every kill is logged when it is noticed. The size of a killed process cannot be read any more, so sizes are read
    continuously.

    Attributes:
        kills: number of times that the kernel or Ray's monitor has killed processes of a node since the watch began,
            as of the last call of `look` or `see`. Processes that are killed at the same time count once.
    """

    def __init__(self, limit: MemoryLimit) -> None:
        """Watch `limit` from now on. Without the thread that `start` begins, only method calls read it."""
        self._limit = limit
        self._lock = threading.RLock()  # `look` calls `see`, which calls `record`, and each takes it
        self._readings = {HERE: limit.read()}
        self._last: dict[str, tuple[float, str]] = {}  # by node, the time of the last kill and the message about it
        self._report = ""
        self.kills = 0

    def start(self) -> Self:
        """Start the thread, which ends with this process."""

        def keep_looking() -> None:
            while True:
                time.sleep(POLL_SECONDS)
                self.look()

        threading.Thread(target=keep_looking, name="memory-limit", daemon=True).start()
        return self

    def look(self) -> None:
        """Read this process's control group, and log a warning if a process was killed since the last look."""
        with self._lock:
            self.see(self._limit.read())

    def see(self, reading: Reading, node: str = HERE) -> None:
        """Process a reading of a node. Kills before its first reading do not count."""
        with self._lock:
            before = self._readings.get(node, reading)
            if reading.kills > before.kills:
                # The kernel counts kills without naming processes: of the processes that are gone, it was most likely
                # the largest.
                gone = before.sizes.keys() - reading.sizes.keys()
                largest = max((before.sizes[pid] for pid in gone), key=lambda one: one.gib, default=None)
                killed = [largest] if largest and largest.gib >= SMALLEST else []
                # The peak of the new reading, because the group reached it after the earlier one.
                self.record("the kernel", killed, before._replace(peak=reading.peak).of_the_machine, node)
            # Never fewer, because readings of another node may arrive late, and a kill would be counted twice.
            self._readings[node] = reading._replace(kills=max(reading.kills, before.kills))

    def record(self, killer: str, killed: Collection[Process], before: Reading, node: str = HERE) -> None:
        """Count a kill, and log a message about it.

        Args:
            killer: what killed the processes.
            killed: the killed processes, as far as they are known.
            before: a reading of the node before the kill.
            node: the address of the node.
        """
        names = ", ".join(f"{one.name} {one.gib:.1f} GiB" for one in sorted(killed, key=lambda one: -one.gib))
        number = "a process" if len(killed) < 2 else f"{len(killed)} processes"
        used_up = "" if before.limit else ", which is used up"
        what = f"{killer} killed {number}{names and f' ({names})'} because of {_describe_bound(before, node)}{used_up}"
        with self._lock:
            self.kills += 1
            self._report = f"{what}; {_describe_largest(before)}"
            self._last[node] = time.monotonic(), self._report
        logger.warning("%s", self._report)

    def find_reading(self, node: str = HERE) -> Reading | None:
        """Return the newest reading of a node, or None if there is none."""
        return self._readings.get(node)

    def describe_recent(self, node: str = HERE) -> str:
        """Return the message about a kill on a node within the last `RECENT_SECONDS`, or "" if there was none.

        For this process's node, the control group is read again first.
        """
        self.look()
        # Without a kill, as if the last one were too long ago.
        when, sentence = self._last.get(node, (-RECENT_SECONDS, ""))
        return sentence if time.monotonic() - when < RECENT_SECONDS else ""

    def report(self) -> str:
        """Read again and return the message about the last kill on any node since the watch began, or ""."""
        self.look()
        return self._report

    def explain(self, message: str, remedy: str = "") -> str:
        """Add the limit and the largest processes to a message about a process that did not start for lack of memory.

        `remedy` is the advice in the message. If empty, it is the option that makes the largest process smaller.
        """
        self.look()
        reading = self._readings[HERE]
        return f"{message}, within {_describe_bound(reading, HERE)}; {_describe_largest(reading, remedy)}"


@cache
def watch() -> MemoryWatch:
    """Return this process's `MemoryWatch` of its control group. The first call starts it."""
    return MemoryWatch(MemoryLimit.from_this_process()).start()


def return_freed_memory() -> None:
    """Return the memory that this process has freed to the system, which glibc would keep.

    In a local run, earlier stages have loaded the model in the same process that then trains.
    """
    gc.collect()
    with contextlib.suppress(AttributeError, OSError):  # another C library
        ctypes.CDLL(None).malloc_trim(0)


def add_cause(message: str) -> str:
    """Return a message about a lost process of this node, with the kill for lack of memory just before it, if any."""
    cause = watch().describe_recent()
    return f"{message}: {cause}" if cause else message


def find_shortage(error: BaseException) -> ShortOfMemoryError | None:
    """Return the `ShortOfMemoryError` among `error` and its causes, or None if there is none."""
    return next((cause for cause in list_causes(error) if isinstance(cause, ShortOfMemoryError)), None)


def _describe_bound(reading: Reading, node: str) -> str:
    bound = f"the memory limit of {reading.limit / GIB:.1f} GiB" if reading.limit else "the machine's memory"
    return f"{bound} of node {node}" if node else bound


def _describe_largest(reading: Reading, remedy: str = "") -> str:
    """Return the part of a message that names the largest processes and the remedy (see `MemoryWatch.explain`)."""
    largest = sorted(reading.sizes.values(), key=lambda one: -one.gib)
    named = ", ".join(f"{one.name} {one.gib:.1f} GiB" for one in largest[:LARGEST] if one.gib >= SMALLEST)
    remedy = remedy or (largest[0].remedy if named else OTHER_REMEDY)
    more = "close other programs" if reading.limit is None else "raise memory_gib of the pod"
    return f"the largest processes were {named or 'unknown'}; {remedy}, or {more}"


def _read_text(path: Path) -> str:
    """Return the text of a file of the kernel. Empty if it does not exist or its process has ended."""
    try:
        return path.read_text(errors="replace")  # a command line may contain any bytes
    except OSError:
        return ""


def _read_field(path: Path, name: str) -> str | None:
    """Return the word after `name` in a file of the kernel with one field per line, or None if the field is missing."""
    return next((words[1] for line in _read_text(path).splitlines() if (words := line.split())[:1] == [name]), None)


def _shorten(command: str) -> str:
    """Return what a command line runs: Python's module or script, otherwise the program."""
    words = command.split() or ["?"]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return Path(script if "python" in Path(words[0]).name and script else words[0]).name
