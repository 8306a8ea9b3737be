"""The memory limit of this process's control group, and the processes that the kernel kills because of it.

A killed process leaves no message of its own: Ray and vLLM report that it "died unexpectedly". The control group counts
the kills, in both versions of the kernel's interface:

    version 2   memory.max              memory.events        oom_kill 1
    version 1   memory.limit_in_bytes   memory.oom_control   oom_kill 1
"""

from __future__ import annotations

import logging
import threading
import time
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import NamedTuple, Self

from tasks.failures import MistakeError

logger = logging.getLogger(__name__)

MOUNTS = Path("/sys/fs/cgroup")
"""Folder below which the control groups lie."""
PROCESSES = Path("/proc")
"""Folder in which the kernel describes every process, and the machine's memory."""
GIB = 2**30
"""Bytes of a GiB."""
POLL_SECONDS = 1.0
"""Seconds between two looks at the counter of kills and at the sizes of the processes."""
RAYS_WORDS = "low on memory"
"""Part of Ray's message on a process that its own monitor killed, before the kernel would have done so."""
RECENT_SECONDS = 15.0
"""Seconds after a kill within which the loss of a process is put down to it; Ray reports a death some seconds late."""
LARGEST = 4
"""Number of processes that a message names."""
SMALLEST = 0.1
"""GiB below which a process is not named in a message."""
UNLIMITED = 2**60
"""Bytes from which on version 1's limit means that there is none."""

KINDS = (
    ("tasks.verifiers.chat.launcher", "judge's server", "lower verifiers.judge.server.cpu_kv_cache_gib"),
    ("LearnerRank", "learner rank", "lower learner.micro_batch_tokens"),
    ("EngineCore", "engine", "lower cpu_kv_cache_gib of the engine"),
    ("RewardProcess", "reward process", "lower rewards.workers"),
    ("tasks.verifiers.worker", "verifier's worker", "lower rewards.workers"),
)
"""For each kind of process: a part of its command line, its name in a message, and the option that makes it smaller."""
OTHER_REMEDY = "lower learner.micro_batch_tokens or cpu_kv_cache_gib of the engine"
"""Words on the options that help where the largest process is of no kind in `KINDS`."""


class MemoryLimitError(MistakeError):
    """The kernel killed a process for memory, again after one retry: the work needs more than the limit."""


class Process(NamedTuple):
    """A process of the control group: its name in a message, the option that makes it smaller, and its own memory."""

    name: str
    remedy: str
    gib: float


@dataclass(frozen=True)
class MemoryLimit:
    """A control group, read from its files: its limit, its processes, and how many of them the kernel has killed.

    Attributes:
        folder: the control group's.
        top: the folder up to which the limits of outer groups count as well; `folder` or one that holds it.
        processes: where the kernel describes processes.
    """

    folder: Path
    top: Path
    processes: Path = PROCESSES

    @classmethod
    def of_this_process(cls, mounts: Path = MOUNTS, processes: Path = PROCESSES) -> Self:
        """Return the control group of this process; in a container it is the outermost that it sees."""
        top, path = mounts, ""
        for line in _text(processes / "self" / "cgroup").splitlines():
            _, controllers, name = line.split(":", 2)
            if "memory" in controllers.split(","):
                top, path = mounts / "memory", name
                break
            if not controllers:
                path = name
        folder = top / path.strip("/")
        return cls(folder if folder.is_dir() else top, top, processes)

    def limit(self) -> int | None:
        """Return the lowest limit of the group and its outer ones, bytes; None: there is none."""
        folders = [self.folder, *(outer for outer in self.folder.parents if outer.is_relative_to(self.top))]
        limits = [
            int(text)
            for folder in folders
            for name in ("memory.max", "memory.limit_in_bytes")
            if (text := _text(folder / name).strip()).isdecimal()
        ]
        return min((limit for limit in limits if limit < UNLIMITED), default=None)

    def available(self) -> int:
        """Return the bytes that all processes may use: the limit, or the machine's memory where that is less."""
        return min(filter(None, (self.limit(), self.machine())))

    def machine(self) -> int:
        """Return the machine's memory, bytes."""
        return 1024 * int(_field(self.processes / "meminfo", "MemTotal:") or UNLIMITED // 1024)

    def kills(self) -> int:
        """Return the number of the group's processes that the kernel has killed for memory so far."""
        texts = (_field(self.folder / name, "oom_kill") for name in ("memory.events", "memory.oom_control"))
        return sum(int(text) for text in texts if text)

    def sizes(self) -> dict[int, Process]:
        """Return the processes of the group, by id, without those that have ended."""
        pids = map(int, _text(self.folder / "cgroup.procs").split())
        return {pid: process for pid in pids if (process := self._process(pid))}

    def _process(self, pid: int) -> Process | None:
        kilobytes = _field(self.processes / str(pid) / "status", "RssAnon:")  # a shared page would count several times
        if kilobytes is None:
            return None
        command = self._command(pid)
        if "EngineCore" in command:  # a judge's server leads the process group of its engine
            group = _text(self.processes / str(pid) / "stat").rpartition(")")[2].split()[2]
            command = f"{self._command(int(group))} {command}"
        name, remedy = next(
            ((name, remedy) for part, name, remedy in KINDS if part in command), (_short(command), OTHER_REMEDY)
        )
        return Process(name, remedy, int(kilobytes) * 1024 / GIB)

    def _command(self, pid: int) -> str:
        return _text(self.processes / str(pid) / "cmdline").replace("\0", " ").strip()


class MemoryWatch:
    """A watch over the kills of a control group, in a thread of its own: it logs every one as it comes.

    The size of a process is gone with it, so that sizes are read all the time.

    Attributes:
        kills: number of kills since the watch began, up to the last `look`, by the kernel and by Ray's monitor.
    """

    def __init__(self, limit: MemoryLimit) -> None:
        """Watch `limit` from now on; `start` begins the thread, without which only calls look."""
        self._limit = limit
        self._lock = threading.Lock()
        self._sizes = limit.sizes()
        self._counted = limit.kills()
        self._last = -RECENT_SECONDS
        self._report = ""
        self.kills = 0

    def start(self) -> Self:
        """Start the thread, which ends with this process."""

        def look_again_and_again() -> None:
            while True:
                time.sleep(POLL_SECONDS)
                self.look()
                self._sizes = self._limit.sizes()

        threading.Thread(target=look_again_and_again, name="memory-limit", daemon=True).start()
        return self

    def look(self) -> None:
        """Read the counter; log a warning where the kernel has killed a process since the last look."""
        with self._lock:
            counted = self._limit.kills()
            if counted > self._counted:
                self._record("the kernel", counted - self._counted)
            self._counted = counted

    def record_rays(self) -> None:
        """Count a kill by Ray's monitor, which no counter has; the calls that one ends arrive within a moment."""
        with self._lock:
            if time.monotonic() - self._last >= RECENT_SECONDS:
                self._record("Ray", 1)

    def _record(self, killer: str, kills: int) -> None:
        self.kills += kills
        self._last, self._report = time.monotonic(), self._sentence(killer, self._limit.sizes())
        logger.warning("%s", self._report)

    def _sentence(self, killer: str, sizes: dict[int, Process]) -> str:
        """Return the sentence on a kill, after which the processes have `sizes`; before it they had `self._sizes`."""
        by_size = sorted(self._sizes.items(), key=lambda item: -item[1].gib)
        largest = [(pid, one) for pid, one in by_size if one.gib >= SMALLEST][:LARGEST]
        ended = next((one for pid, one in largest if pid not in sizes), None)
        killed = f"a process ({ended.name}, {ended.gib:.1f} GiB)" if ended else "a process"
        named = ", ".join(f"{one.name} {one.gib:.1f} GiB" for _, one in largest) or "unknown"
        limit = self._limit.limit()
        bound = f"the memory limit of {limit / GIB:.1f} GiB" if limit else "the machine's memory, which is used up"
        remedy = largest[0][1].remedy if largest else OTHER_REMEDY
        more = "raise memory_gib of the pod" if limit else "close other programs"
        return f"{killer} killed {killed} because of {bound}; the largest processes were {named}; {remedy}, or {more}"

    def recent(self) -> str:
        """Return the sentence on a kill within the last `RECENT_SECONDS`, looking once more; empty: there was none."""
        self.look()
        return self._report if time.monotonic() - self._last < RECENT_SECONDS else ""

    def report(self) -> str:
        """Return the sentence on the last kill since the watch began, looking once more; empty: there was none."""
        self.look()
        return self._report


@cache
def watch() -> MemoryWatch:
    """Return this process's watch over its own control group; the first call starts it."""
    return MemoryWatch(MemoryLimit.of_this_process()).start()


def with_cause(message: str, error: BaseException | None = None) -> str:
    """Return a message on the loss of a process, with the kill for memory where one has just come before it.

    Args:
        message: the message.
        error: Ray's error on the loss, which may say that Ray's own monitor killed the process.
    """
    if error is not None and RAYS_WORDS in str(error):
        watch().record_rays()
    cause = watch().recent()
    return f"{message}: {cause}" if cause else message


def _text(path: Path) -> str:
    """Return the text of one of the kernel's files; empty where it does not exist, or its process has ended."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _field(path: Path, name: str) -> str | None:
    """Return the word after `name` in one of the kernel's files of a field a line; None: it has no such field."""
    return next((words[1] for line in _text(path).splitlines() if (words := line.split())[:1] == [name]), None)


def _short(command: str) -> str:
    """Return what a command line runs: the module or the script of Python, else the program."""
    words = command.split() or ["?"]
    if "-m" in words[:-1]:
        return words[words.index("-m") + 1]
    script = next((word for word in words[1:] if not word.startswith("-")), "")
    return Path(script if "python" in Path(words[0]).name and script else words[0]).name
