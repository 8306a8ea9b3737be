"""Runs in the worker processes of a verifier, and in the fork server that forks them.

`main` is the fork server (`fork_server`). A worker is a fork of it, so that it starts in milliseconds. It is locked up
before it reads its first call: no network, no other programs, and nothing that it can write to. Calls and scores are
lines of JSON on its socket. The kernel ends a worker whose call has used its budget of CPU time, even in the middle of
a C loop and on a busy machine. A worker of `overlapping` calls runs many at a time, and is ended when one of them
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
from tasks.verifiers.code.inside.forking import MESSAGE_BYTES, handle_requests
from tasks.verifiers.scores import CannotJudge, Score

RETIRED = "retired"
"""Key of a response without a score: earlier calls used up the worker's memory, and it must be replaced."""
LINE_BYTES = 1 << 26
"""Maximum length of a call or response of a worker, in bytes."""
BEAT_SECONDS = 0.25
"""Maximum interval in seconds at which an event loop resets its CPU time limit."""
OVERRUN_SIGNAL = signal.SIGPROF
"""Signal that the kernel sends to end a worker whose call used up its CPU time."""


def main() -> None:
    """Serve as the fork server of a verifier."""
    serve(warm_up, _start_work)


def warm_up(settings: Mapping[str, Any]) -> None:
    """Load the verifier that the settings name."""
    logging.disable(logging.ERROR)  # the checkers log whole responses that they cannot parse
    registry.load_in_process_module(settings["verifier"]).warm_up()


def _start_work(connection: socket.socket, settings: Mapping[str, Any]) -> None:
    if settings["overlapping"]:
        asyncio.run(run_overlapping_worker(connection))
    else:
        run_worker(connection, settings["verifier"])


def serve(
    warm_up: Callable[[Mapping[str, Any]], None], work: Callable[[socket.socket, Mapping[str, Any]], None]
) -> None:
    """Serve as a fork server of workers, until the process that started it has ended.

    The descriptor of the control socket is the process's last argument. Its first message is the settings.

    Args:
        warm_up: loads what all workers need, given the settings.
        work: does the work of one worker until its socket is closed by the parent. It is called with this socket, and
            the settings with the fields of the fork request.
    """
    control = socket.socket(fileno=int(sys.argv[-1]))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    process_limits.die_with_parent()
    process_limits.prefer_for_out_of_memory()
    settings = json.loads(control.recv(MESSAGE_BYTES))
    warm_up(settings)
    gc.collect()
    gc.freeze()  # workers share this memory, and their garbage collection can skip it
    control.send(b"{}")

    def fork(order: dict[str, Any], descriptors: list[int], _: bool) -> tuple[dict[str, Any], list[int]]:
        child = os.fork()
        if not child:
            control.close()
            _become_worker(descriptors[0], {**settings, **order}, work)
        return {"pid": child}, []

    if settings["locked_up"]:  # its workers can start no processes
        handle_requests(control, fork)
        return
    process_limits.adopt_orphans()
    own = process_limits.list_children()  # an imported module may have started some, which all workers share
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())
    process_limits.die_with_parent(signal.SIGTERM)  # SIGKILL would leave what its workers have started
    try:
        handle_requests(control, fork, lambda workers: process_limits.end_children(workers | own))
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        process_limits.end_children()


def _become_worker(
    descriptor: int, settings: Mapping[str, Any], work: Callable[[socket.socket, Mapping[str, Any]], None]
) -> NoReturn:
    """Set the limits of a worker, do its work, and end it; never returns to the code of the fork server."""
    status = 1
    try:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        connection = socket.socket(fileno=descriptor)
        process_limits.die_with_parent()
        os.nice(settings["fork"])
        process_limits.limit_memory(settings["memory_mib"] << 20)
        if settings["locked_up"]:
            process_limits.lock_up()
        else:
            process_limits.adopt_orphans()
        work(connection, settings)
        status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)


def run_worker(connection: socket.socket, verifier: str) -> None:
    """Run a worker process: score each call on the socket, within its CPU time, until the socket is closed."""
    stream = connection.makefile("rwb")
    for calls, line in enumerate(stream):
        call = json.loads(line)
        signal.setitimer(signal.ITIMER_PROF, call["cpu_seconds"])
        try:
            answer = asdict(registry.judge(verifier, call["response"], call["ground_truth"], call["messages"]))
        except MemoryError as error:
            answer = {RETIRED: True} if calls else asdict(registry.score_too_large(error))
        signal.setitimer(signal.ITIMER_PROF, 0)
        stream.write(json.dumps(answer).encode() + b"\n")
        stream.flush()


async def run_overlapping_worker(connection: socket.socket) -> None:
    """Run a worker process of `async def` reward functions: score each call on the socket while others wait."""
    reader, writer = await asyncio.open_connection(sock=connection, limit=LINE_BYTES)
    async with asyncio.TaskGroup() as calls:  # a MemoryError of one call ends it
        beating = False
        while line := await reader.readline():
            call = json.loads(line)
            if not beating:
                calls.create_task(_beat(call["cpu_seconds"]))
                beating = True
            calls.create_task(_answer(call, writer))
        os._exit(0)  # nothing waits for an answer any more


async def _beat(cpu_seconds: float) -> None:
    """Postpone the end of the process for as long as its event loop runs."""
    while True:
        signal.setitimer(signal.ITIMER_PROF, cpu_seconds)
        await asyncio.sleep(min(BEAT_SECONDS, cpu_seconds / 4))


async def _answer(call: dict[str, Any], writer: asyncio.StreamWriter) -> None:
    from tasks.verifiers import functions

    try:
        async with asyncio.timeout(call["wall_seconds"]):
            score = await functions.judge_overlapping(call["response"], call["ground_truth"], call["messages"])
    except TimeoutError:
        score = Score.from_error(CannotJudge(describe_timeout(call["wall_seconds"]), timed_out=True))
    except CannotJudge as reason:
        score = Score.from_error(reason)
    answer = {"number": call["number"], "score": None if score is None else asdict(score)}
    writer.write(json.dumps(answer).encode() + b"\n")
    await writer.drain()


def describe_timeout(wall_seconds: float) -> str:
    """Return the reason why a call that reached its wall time limit has no score."""
    return f"the judgement did not end in {wall_seconds:g} s, most of which it waited"
