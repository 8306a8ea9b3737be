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
from multiprocessing.connection import Connection

from tasks.verifiers import registry
from tasks.verifiers.config import VerifiersConfig

PRELOAD = "tasks.verifiers.preload"
_PR_SET_PDEATHSIG = 1


@dataclass(frozen=True)
class Settings:
    """What the process that owns the pool hands to its workers."""

    config: VerifiersConfig
    nltk_data: str | None


def work(pipe: Connection, settings: Settings) -> None:
    """Say `None` once warm, then answer each call with its score, until the caller is gone."""
    _initialize(settings)
    pipe.send(None)
    while True:
        try:
            call = pipe.recv()
        except EOFError:
            return
        pipe.send(registry.judge(*call))


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
    registry.warm_up(settings.config)
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
