"""The code that runs inside the processes of a lane: a warm template, and the workers that are forked from it.

    lane ──{"fork": nice} + descriptor──► template ──fork──► worker ◄──a line of JSON each way──► lane
         ──{"end": pid}─────────────────► kills the worker, and returns its exit status

`main` is the template. A worker is a fork of it, so that its start costs milliseconds; it is locked up before it reads
its first call: no network, no other programs, nothing to write to. The kernel ends it when a call has used the CPU time
that it was granted, in the middle of a C loop too, and however busy the machine is.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import signal
import socket
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from tasks.verifiers import kernel, registry

MESSAGE_BYTES = 1 << 16
"""Longest message between a lane and its template, in bytes."""
RETIRED = "retired"
"""Key of an answer that holds no score: earlier calls took the worker's memory, and it must be replaced."""
OVERRUN_SIGNAL = signal.SIGPROF
"""Signal by which the kernel ends a worker whose call used up its CPU time."""


def main() -> None:
    """Serve as the template process of a verifier."""
    serve(warm_up, lambda connection, settings: work(connection, settings["verifier"]))


def warm_up(settings: Mapping[str, Any]) -> None:
    """Load the verifier that the settings name."""
    logging.disable(logging.ERROR)  # the checkers log whole responses that they cannot make sense of
    registry.in_process_module(settings["verifier"]).warm_up()


def serve(
    warm_up: Callable[[Mapping[str, Any]], None], work: Callable[[socket.socket, Mapping[str, Any]], None]
) -> None:
    """Serve as the template process that workers are forked from, until the lane is gone.

    The descriptor of the control socket is the process's only argument. Its first message holds the settings.

    Args:
        warm_up: loads what all workers need, given the settings.
        work: the work of one worker, given its socket and the settings, until the other end closes.
    """
    control = socket.socket(fileno=int(sys.argv[1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    kernel.die_with_parent()
    kernel.prefer_for_out_of_memory()
    settings = json.loads(control.recv(MESSAGE_BYTES))
    warm_up(settings)
    gc.collect()
    gc.freeze()  # workers share what is in memory now, and their collections need not walk it
    control.send(b"{}")
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, MESSAGE_BYTES, 1)
        if not message:
            return
        order = json.loads(message)
        if "fork" in order:
            answer = {"pid": _fork(control, descriptors[0], order["fork"], settings, work)}
        else:
            answer = {"status": _end(order["end"])}
        control.send(json.dumps(answer).encode())


def _fork(
    control: socket.socket,
    descriptor: int,
    nice: int,
    settings: Mapping[str, Any],
    work: Callable[[socket.socket, Mapping[str, Any]], None],
) -> int:
    child = os.fork()
    if child:
        os.close(descriptor)
        return child
    status = 1
    try:
        control.close()
        connection = socket.socket(fileno=descriptor)
        kernel.die_with_parent()
        os.nice(nice)
        kernel.limit_memory(settings["memory_mib"] << 20)
        if settings["locked_up"]:
            kernel.lock_up()
        work(connection, settings)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def _end(pid: int) -> int:
    """Kill a worker that has not ended by itself, and return its exit status, negative for a signal."""
    ended, status = os.waitpid(pid, os.WNOHANG)
    if not ended:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    return os.waitstatus_to_exitcode(status)


def work(connection: socket.socket, verifier: str) -> None:
    """Run a worker process: score each call on the socket, within its CPU time, until the other end closes."""
    stream = connection.makefile("rwb")
    for calls, line in enumerate(stream):
        call = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, call["cpu_seconds"])
        try:
            answer = asdict(registry.judge(verifier, call["response"], call["ground_truth"], call["messages"]))
        except MemoryError as error:
            answer = {RETIRED: True} if calls else asdict(registry.too_large(error))
        signal.setitimer(signal.ITIMER_PROF, 0)
        stream.write(json.dumps(answer).encode() + b"\n")
        stream.flush()
