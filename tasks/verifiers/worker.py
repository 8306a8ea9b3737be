"""What runs inside a verifier process."""

from __future__ import annotations

import ctypes
import fcntl
import logging
import multiprocessing
import os
import resource
import signal
import sys
from dataclasses import dataclass
from enum import Enum, auto
from multiprocessing.connection import Connection
from typing import NamedTuple

from tasks.verifiers import registry
from tasks.verifiers.calls import Call
from tasks.verifiers.config import VerifiersConfig
from tasks.verifiers.scores import PutBack, Score

PRELOAD = "tasks.verifiers.preload"
NAME = "verifier"
"""That of every worker process."""
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Settings:
    """What the process that owns the pool hands to its workers.

    Attributes:
        config: limits and options.
        nltk_data: where NLTK looks first.
        rehearses: whether they compare two answers before their first call.
    """

    config: VerifiersConfig
    nltk_data: str | None
    rehearses: bool = False


class Says(Enum):
    """What a worker tells besides scores."""

    READY = auto()
    SLOW = auto()
    """Its call is slow, or looks like it: it waits for a `Slow` and goes by that."""
    PUT_BACK = auto()
    """Its call was given up, as it was told to."""


class Slow(NamedTuple):
    """What is to become of a slow call: to be given up, or to go on for so long until the worker asks again.

    Attributes:
        goes_on: whether it does.
        seconds: of its own, behind all others; 0 where it need not make way yet.
    """

    goes_on: bool
    seconds: float = 0.0


def work(pipe: Connection, settings: Settings) -> None:
    """Say READY once warm, then answer each call with its score, until the caller is gone."""
    from tasks.verifiers import code, mathematics

    def on_slow() -> float:
        pipe.send(Says.SLOW)
        answer: Slow = pipe.recv()
        if not answer.goes_on:
            raise PutBack
        return answer.seconds

    _initialize(settings)
    code.configure(settings.config.code, on_slow)
    mathematics.configure(on_slow)
    if settings.rehearses:
        mathematics.rehearse()
    pipe.send(Says.READY)
    while True:
        try:
            pipe.send(_judge(pipe.recv()))
        except EOFError:
            return


def _judge(call: Call) -> Score | Says:
    try:
        return registry.judge(*call)
    except PutBack:
        return Says.PUT_BACK


def _initialize(settings: Settings) -> None:
    """Make the process killable, bounded and warm.

    SIGTERM takes its default action: Python's own handler would wait for a C loop such as `10**10**10` to end. The
    environment comes along because a forkserver keeps the one it was started with.
    """
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _die_with_caller()
    if settings.nltk_data is not None:
        import nltk

        os.environ["NLTK_DATA"] = settings.nltk_data
        nltk.data.path[:0] = settings.nltk_data.split(os.pathsep)
    registry.warm_up()
    limit = settings.config.memory_mib * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
    logging.disable(logging.ERROR)  # the checkers log whole responses that they cannot make sense of


def _die_with_caller() -> None:
    """Have the kernel end this process when the pool's does, by SIGKILL too, and in the middle of a C loop too.

    The pipe that shows whether the caller lives raises SIGIO when it closes, whose default action is to terminate. The
    forkserver is no such sign, as each of its children keeps it alive; should it end all the same, Linux sends SIGKILL.
    """
    caller = multiprocessing.parent_process()
    assert caller is not None, "a worker is started by a pool"
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(caller.sentinel, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(caller.sentinel, fcntl.F_SETFL, fcntl.fcntl(caller.sentinel, fcntl.F_GETFL) | os.O_ASYNC)
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if not caller.is_alive():  # it ended before the signals were asked for
        os._exit(1)
