"""The code that runs inside the processes of a lane: a warm template, and the workers that are forked from it.

    lane ──{"fork": nice, ...} + descriptor──► template ──fork──► worker ◄──a line of JSON each way──► lane
         ──{"end": pid}─────────────────► kills the worker, and returns its exit status

`main` is the template. A worker is a fork of it, so that its start costs milliseconds; it is locked up before it reads
its first call: no network, no other programs, nothing to write to. The kernel ends it when a call has used the CPU time
that it was granted, in the middle of a C loop too, and however busy the machine is. A worker of `overlapping` calls has
many at a time, and is ended when one of them computes for that long without returning to the event loop.
"""

from __future__ import annotations

import asyncio
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
from tasks.verifiers.scores import CannotJudge, Score

MESSAGE_BYTES = 1 << 16
"""Longest message between a lane and its template, in bytes."""
RETIRED = "retired"
"""Key of an answer that holds no score: earlier calls took the worker's memory, and it must be replaced."""
LINE_BYTES = 1 << 26
"""Longest call or answer of a worker, in bytes."""
BEAT_SECONDS = 0.25
"""Longest time between two looks of an event loop at its limit of CPU time, seconds."""
OVERRUN_SIGNAL = signal.SIGPROF
"""Signal by which the kernel ends a worker whose call used up its CPU time."""


def main() -> None:
    """Serve as the template process of a verifier."""
    serve(warm_up, _work)


def warm_up(settings: Mapping[str, Any]) -> None:
    """Load the verifier that the settings name."""
    logging.disable(logging.ERROR)  # the checkers log whole responses that they cannot make sense of
    registry.in_process_module(settings["verifier"]).warm_up()


def _work(connection: socket.socket, settings: Mapping[str, Any]) -> None:
    if settings["overlapping"]:
        asyncio.run(work_overlapping(connection))
    else:
        work(connection, settings["verifier"])


def serve(
    warm_up: Callable[[Mapping[str, Any]], None], work: Callable[[socket.socket, Mapping[str, Any]], None]
) -> None:
    """Serve as the template process that workers are forked from, until the lane is gone.

    The descriptor of the control socket is the process's only argument. Its first message holds the settings.

    Args:
        warm_up: loads what all workers need, given the settings.
        work: the work of one worker, given its socket, and the settings with those of the order to fork it, until the
            other end closes.
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
            answer = {"pid": _fork(control, descriptors[0], order, settings, work)}
        else:
            answer = {"status": _end(order["end"])}
        control.send(json.dumps(answer).encode())


def _fork(
    control: socket.socket,
    descriptor: int,
    order: Mapping[str, Any],
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
        os.nice(order["fork"])
        kernel.limit_memory(settings["memory_mib"] << 20)
        if settings["locked_up"]:
            kernel.lock_up()
        work(connection, {**settings, **order})
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


async def work_overlapping(connection: socket.socket) -> None:
    """Run a worker process of `async def` reward functions: score each call on the socket while others wait."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_BYTES)
    async with asyncio.TaskGroup() as calls:  # memory that is used up ends it, as one of its calls raises
        beating = False
        while line := await reader.readline():
            call = json.loads(line)
            if not beating:
                calls.create_task(_beat(call["cpu_seconds"]))
                beating = True
            calls.create_task(_answer(call, writer))
        os._exit(0)  # the lane is gone


async def _beat(cpu_seconds: float) -> None:
    """Put off the end of the process for as long as its event loop runs."""
    while True:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        await asyncio.sleep(min(BEAT_SECONDS, cpu_seconds / 4))


async def _answer(call: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    from tasks.verifiers import functions

    try:
        async with asyncio.timeout(call["wall_seconds"]):
            score = await functions.judge_overlapping(call["response"], call["ground_truth"], call["messages"])
    except TimeoutError:
        score = Score.unjudged(CannotJudge(waited(call["wall_seconds"]), timed_out=True))
    except CannotJudge as reason:
        score = Score.unjudged(reason)
    answer = {"number": call["number"], "score": None if score is None else asdict(score)}
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()


def waited(wall_seconds: float) -> str:
    """Return the reason why a call that reached its limit of wall time has no score."""
    return f"the judgement did not end in {wall_seconds:g} s, most of which it waited"
