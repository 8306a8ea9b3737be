"""Verifiers: a response and a ground truth in, a score out. The reward of training, and the same one everywhere.

`verify` is the seam for single calls. Stages that judge many responses hold a `VerifierPool`, which is what answers
`verify` too, so that offline filtering, training and evaluation agree. Ground truths are JSON values:

    math            "1/2", or a list of strings of which one must match; {"answer": ..., "mode": ...} for other graders
    code            {"tests": ["assert f(1) == 2", ...], "setup": ""} or {"cases": [{"input": "", "output": ""}, ...]}
    precise_if      {"instruction_ids": [...], "kwargs": [{...}, ...], "mode": "strict" | "loose" (optional)}
    chat_reference  {"reference": "..."}
    chat_open       null
    function        {"function": "rewards.accuracy_reward", "columns": {...}}
    weighted        {"rewards": [{"verifier": ..., "weight": ..., "ground_truth": ...}, ...]}

Importing this package loads no checker: SymPy and the others live in the worker processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tasks.verifiers import registry
from tasks.verifiers.calls import Call, Messages, VerifierStats
from tasks.verifiers.config import DEFAULTS, VerifiersConfig
from tasks.verifiers.pool import VerifierPool
from tasks.verifiers.scores import VERIFIERS, GroundTruthError, Reward, Score

__all__ = [
    "VERIFIERS",
    "Call",
    "Reward",
    "Score",
    "VerifierPool",
    "VerifierStats",
    "VerifiersConfig",
    "check_ground_truth",
    "configure",
    "missing_resources",
    "open_pool",
    "verifiers_of",
    "verify",
]


def verify(verifier: str, response: str, ground_truth: Any, *, messages: Messages | None = None) -> Score:
    """Judge one response in processes that all threads of this process share, started by the first call.

    Never raises for a response or a ground truth, however bad: see `Score`, and look at its `error` first.

    Args:
        verifier: one of `VERIFIERS`.
        response: the policy's text, thinking part included.
        ground_truth: a JSON value, as the module's docstring has it.
        messages: the prompt's turns, for verifiers that read the prompt.

    Raises:
        ValueError: `verifier` is unknown.
    """
    return _shared.pool().submit(verifier, response, ground_truth, messages).result()


def configure(config: VerifiersConfig) -> None:
    """Set the options of `verify`: without it chat has no judge, and everything else its defaults."""
    _shared.configure(config)


def check_ground_truth(verifier: str, ground_truth: Any) -> str | None:
    """Why a ground truth is malformed, or None: to be asked before any expensive work.

    Raises `ValueError` where the verifier is unknown.
    """
    try:
        registry.check_ground_truth(verifier, ground_truth)
    except GroundTruthError as reason:
        return str(reason)
    return None


def missing_resources(verifier: str, ground_truth: Any, config: VerifiersConfig = DEFAULTS) -> list[str]:
    """What judging by a well-formed ground truth needs and this machine lacks, each by name; empty if nothing."""
    elsewhere = ("code",) if config.code.remote is not None else ()
    missing = registry.missing_resources(verifier, ground_truth, elsewhere)
    if config.judge is None and not verifiers_of(verifier, ground_truth).isdisjoint(registry.CHAT):
        missing.append("a judge (verifiers.judge: a model to serve, or the URL of an endpoint)")
    return missing


def verifiers_of(verifier: str, ground_truth: Any) -> set[str]:
    """The verifiers that a well-formed ground truth asks for: itself, or those of its parts."""
    return registry.verifiers_of(verifier, ground_truth)


@contextmanager
def open_pool(workers: int, config: VerifiersConfig, verifiers: Iterable[str]) -> Iterator[VerifierPool]:
    """A pool that can judge by `verifiers`, and loads what they need; starts the judge's own server where it is to.

    Raises:
        ValueError: chat is among them, and no judge is configured.
    """
    with ExitStack() as stack:
        if set(verifiers) & set(registry.CHAT):
            if config.judge is None:
                raise ValueError("there are chat prompts and no judge for them: give verifiers.judge")
            from tasks.verifiers.chat import serving

            config = config.model_copy(update={"judge": stack.enter_context(serving(config.judge))})
        elif config.judge is not None:
            config = config.model_copy(update={"judge": None})
        pool = stack.enter_context(VerifierPool(workers, config))
        pool.start(verifiers)
        yield pool


class _Shared:
    """The one-worker pool behind `verify`; a forked child is told to be started otherwise, not left to wait."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        self._lock = threading.Lock()
        self._config = VerifiersConfig()
        self._pool: VerifierPool | None = None

    def configure(self, config: VerifiersConfig) -> None:
        with self._lock:
            self._config = config
            if self._pool is not None:
                self._pool.close()
            self._pool = None

    def pool(self) -> VerifierPool:
        with self._lock:
            if self._pool is None:
                self._pool = VerifierPool(1, self._config)
            return self._pool


_shared = _Shared()
