"""The code that runs in the worker processes of a verifier, and in the fork server that they come from.

`main` is the fork server (`fork_server`). A worker is a fork of it, so that its start costs milliseconds. It is locked
up before it reads its first call: no network, no other programs, nothing to write to. Calls and scores are lines of
JSON on a socket of its own. The kernel ends it when a call has used its budget of CPU time, in the middle of a C loop
too, and however busy the machine is. A worker of `overlapping` calls has many at a time, and is ended when one of them
computes for that long without returning to the event loop.
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
from typing import Any, NoReturn

from tasks.verifiers import process_limits, registry
from tasks.verifiers.code.inside.forking import MESSAGE_BYTES, obey
from tasks.verifiers.scores import CannotJudge, Score

RETIRED = "retired"
"""Key of an answer that holds no score: earlier calls took the worker's memory, and it must be replaced."""
LINE_BYTES = 1 << 26
"""Longest call or answer of a worker, in bytes."""
BEAT_SECONDS = 0.25
"""Longest time between two looks of an event loop at its limit of CPU time, seconds."""
OVERRUN_SIGNAL = signal.SIGPROF
"""Signal by which the kernel ends a worker whose call used up its CPU time."""


def main() -> None:
    """Serve as the fork server of a verifier."""
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
    """Serve as a fork server of workers, until the process that started it is gone.

    The descriptor of the control socket is the process's last argument. Its first message is the settings.

    Args:
        warm_up: loads what all workers need, given the settings.
        work: does the work of one worker until the other end of its socket closes; given this socket, and the settings
            with those of the order to fork it.
    """
    control = socket.socket(fileno=int(sys.argv[-1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_limits.die_with_parent()
    process_limits.prefer_for_out_of_memory()
    settings = json.loads(control.recv(MESSAGE_BYTES))
    warm_up(settings)
    gc.collect()
    gc.freeze()  # workers share what is in memory now, and their collections need not walk it
    control.send(b"{}")

    def fork(order: dict[str, Any], descriptors: list[int], _: bool) -> tuple[dict[str, Any], list[int]]:
        child = os.fork()
        if not child:
            control.close()
            _become_worker(descriptors[0], {**settings, **order}, work)
        return {"pid": child}, []

    obey(control, fork)


def _become_worker(
    descriptor: int, settings: Mapping[str, Any], work: Callable[[socket.socket, Mapping[str, Any]], None]
) -> NoReturn:
    """Set the limits of a worker, do its work, and end it; never return to the fork server's code."""
    status = 1
    try:
        connection = socket.socket(fileno=descriptor)
        process_limits.die_with_parent()
        os.nice(settings["fork"])
        process_limits.limit_memory(settings["memory_mib"] << 20)
        if settings["locked_up"]:
            process_limits.lock_up()
        work(connection, settings)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


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
        os._exit(0)  # nobody waits for an answer any more


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
