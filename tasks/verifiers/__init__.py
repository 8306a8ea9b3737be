"""Verifiers: a response and a ground truth in, a score out. The reward of training, and the same one everywhere.

`verify` is the seam for single calls. Stages that judge many responses hold a `VerifierPool`; both run the same code in
the same kind of process, so that offline filtering, training and evaluation agree. Ground truths are JSON values:

    math        "1/2", or a list of strings of which one must match
    precise_if  {"instruction_ids": [...], "kwargs": [{...}, ...], "mode": "strict" | "loose" (optional)}

Importing this package loads no checker: SymPy and the others live in the worker processes.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from tasks.verifiers.pool import Call, VerifierPool, VerifierStats
from tasks.verifiers.registry import Messages, available, room
from tasks.verifiers.scores import VERIFIERS, GroundTruthError, Score

__all__ = [
    "VERIFIERS",
    "Call",
    "Score",
    "VerifierPool",
    "VerifierStats",
    "available",
    "check_ground_truth",
    "missing_resources",
    "verify",
]


def verify(verifier: str, response: str, ground_truth: Any, *, messages: Messages | None = None) -> Score:
    """Judge one response in a worker process that all threads of this process share, started by the first call.

    Never raises for a response or a ground truth, however bad: see `Score`, and look at its `error` first.

    Args:
        verifier: one of `available()`.
        response: the policy's text, thinking part included.
        ground_truth: a JSON value, as the module's docstring has it.
        messages: the prompt's turns, for verifiers that read the prompt.

    Raises:
        ValueError: `verifier` is unknown, or has no implementation yet.
    """
    return _shared.pool().submit(verifier, response, ground_truth, messages).result()


def check_ground_truth(verifier: str, ground_truth: Any) -> str | None:
    """Why a ground truth is malformed, or None: to be asked before any expensive work.

    Raises `ValueError` where the verifier is not available.
    """
    try:
        room(verifier).check_ground_truth(ground_truth)
    except GroundTruthError as reason:
        return str(reason)
    return None


def missing_resources(verifier: str, ground_truth: Any) -> list[str]:
    """What judging by a well-formed ground truth needs and this machine lacks, each by name; empty if nothing."""
    return room(verifier).missing_resources(ground_truth)


class _Shared:
    """The one-worker pool behind `verify`; a forked child is told to be started otherwise, not left to wait."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._pool: VerifierPool | None = None

    def pool(self) -> VerifierPool:
        with self._lock:
            if self._pool is None:
                self._pool = VerifierPool(workers=1)
            return self._pool


_shared = _Shared()
