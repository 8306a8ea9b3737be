"""Runs the host process, which forks all other processes in the sandbox.

Data of responses and tests never passes through it: its forks read them from their own sockets. So each fork begins in
the same state, and no fork can affect a later one: no process outlives the tests of one response, and each response
gets a new file system as its writable folder.
"""

from __future__ import annotations

import ctypes
import gc
import importlib.util
import json
import os
import signal
import socket
import sys
from functools import partial
from typing import Any, NoReturn

from tasks.verifiers.code.inside import checker, confine, probe, program
from tasks.verifiers.code.inside.forking import handle_requests

WARM = (
    *("bisect", "cmath", "collections", "copy", "dataclasses", "datetime", "decimal", "enum", "fractions", "functools"),
    *("heapq", "io", "itertools", "json", "math", "operator", "random", "re", "statistics", "string", "textwrap"),
    *("time", "typing"),
)
"""Modules that programs often import, loaded before the first fork."""

_MS_NOSUID, _MS_NODEV, _MNT_DETACH = 2, 4, 2
_libc = ctypes.CDLL(None, use_errno=True)


class _Host:
    def __init__(self, settings: dict[str, Any]) -> None:
        self._readable: list[str] = settings["readable"]
        self._writable: str | None = settings["writable"]
        self._writable_bytes: int = settings["writable_bytes"]
        self._landlock: bool = settings["landlock"]
        self._mounted = False

    def fork(self, order: dict[str, Any], descriptors: list[int], first: bool) -> tuple[dict[str, Any], list[int]]:
        """Fork a process that locks itself up; return its pidfd, and a socket on which it reports that.

        It does not wait for the report, so that processes can lock themselves up at the same time.
        """
        if first:
            self._reset_writable()
        locked, locking = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        child = os.fork()
        if child == 0:
            self._become(order, [*descriptors, locking.detach()])
        locking.close()  # only the child has it now, so the parent also notices if the child ends without a report
        return {"pid": child}, [os.pidfd_open(child), locked.detach()]

    def _become(self, order: dict[str, Any], descriptors: list[int]) -> NoReturn:
        """Lock up the child, report that, then run its code; never returns to the code of the host."""
        status = 1
        try:
            os.setpgid(0, 0)  # no new session: Linux may schedule sessions as groups with equal shares
            *moved, locking = _move(descriptors, os.open(os.devnull, os.O_RDWR))
            # The process of the tests must not read files that the response may have written.
            writable = None if order["fork"] == "checker" else self._writable
            os.chdir(writable or "/")
            limits = confine.Limits(**order["limits"])
            with socket.socket(fileno=locking) as announce:
                try:
                    hand_over = partial(_send_requests, announce)
                    confine.confine(limits, self._readable, writable, landlock=self._landlock, hand_over=hand_over)
                except OSError as error:
                    announce.send(str(error).encode()[: confine.MAX_REASON])
                    raise
                announce.send(confine.LOCKED)
            status = _play(order["fork"], moved)
        finally:
            os._exit(status)  # also after an exception: the child must not become a second host

    def _reset_writable(self) -> None:
        """Mount an empty file system over the previous one. Without the right to mount, no folder is writable."""
        if self._writable is None:
            return
        target = self._writable.encode()
        # No fork is left that has the old one open, as this is the first after the end of all others.
        if self._mounted and _libc.umount2(target, _MNT_DETACH):
            raise OSError(ctypes.get_errno(), "umount")
        options = f"size={self._writable_bytes},nr_inodes=1024,mode=700".encode()
        if _libc.mount(b"tmpfs", target, b"tmpfs", ctypes.c_ulong(_MS_NOSUID | _MS_NODEV), options):
            raise OSError(ctypes.get_errno(), "mount tmpfs")
        self._mounted = True


def _send_requests(announce: socket.socket, requests: int) -> None:
    socket.send_fds(announce, [confine.LOCKED], [requests])


def _play(part: str, descriptors: list[int]) -> int:
    """Run the code of a part, and return the exit status."""
    if part == "program":
        with open(descriptors[0], "rb") as source:
            text = source.read().decode("utf-8", "surrogatepass")
        for standard, descriptor in enumerate(descriptors[1:]):
            os.dup2(descriptor, standard)
            os.close(descriptor)
        # As an interpreter opens them; they do not own the descriptors.
        as_text = partial(open, encoding="utf-8", errors="surrogateescape", closefd=False)
        given, written = as_text(0), as_text(1, "w")
        vars(sys).update(stdin=given, __stdin__=given, stdout=written, __stdout__=written)
        return program.run(text)
    if part == "probe":
        return probe.run()
    connections = [
        socket.socket(socket.AF_UNIX, socket.SOCK_STREAM, 0, fileno=descriptor) for descriptor in descriptors
    ]
    if part == "response":
        program.serve(connections[0])
    else:
        checker.serve(*connections)
    return 0


def _move(descriptors: list[int], null: int) -> list[int]:
    """Redirect the standard streams to `null`, renumber the given descriptors from 3 on, and close all others."""
    # By way of high numbers: otherwise one of them could be overwritten before it has been moved.
    high = [os.dup2(descriptor, 200 + position) for position, descriptor in enumerate(descriptors)]
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    moved = [os.dup2(descriptor, 3 + position) for position, descriptor in enumerate(high)]
    os.closerange(3 + len(moved), os.sysconf("SC_OPEN_MAX"))
    return moved


def main(settings: dict[str, Any], control: socket.socket) -> None:
    """Load frequently used modules, then serve as the host; called by the code that starts the sandbox's Python."""
    # Only its parent ends it, with SIGKILL: not Ctrl-C, and not SIGIO, which a fork could let the kernel send here.
    for number in (signal.SIGINT, signal.SIGIO, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Packages can only be imported now: their folders contain others, which must not be found and fail to be read.
    library = list(sys.path)
    sys.path += settings["search"]
    for name in (*WARM, *settings["packages"]):
        importlib.import_module(name)
    sys.path[:] = library
    # Read the listings of all folders of the library now, because forks under Landlock may not.
    importlib.util.find_spec("absent")
    if not confine.is_supported_architecture():
        raise OSError(confine.ENOSYS, "no system call filter for this processor")
    confine.prepare()
    program.prepare()
    host = _Host(settings)
    own = os.pidfd_open(os.getpid())  # the pid itself means nothing outside of this namespace
    socket.send_fds(control, [json.dumps({"ready": True}).encode()], [own])
    os.close(own)
    gc.collect()  # garbage would be frozen, too
    gc.freeze()  # forks share these pages until reference counts in them change
    handle_requests(control, host.fork)
