"""Verifiers score a response against a ground truth. All stages use these scores; in training they are the rewards.

`verify` scores one response. Stages that score many use a `VerifierPool`, which `verify` uses too, so that offline
filtering, training and evaluation agree. Ground truths are JSON values:

    math            "1/2", or a list of strings, one of which must match; {"answer": ..., "mode": ...} for other graders
    code            {"tests": ["assert f(1) == 2", ...], "setup": ""} or {"cases": [{"input": "", "output": ""}, ...]}
    precise_if      {"instruction_ids": [...], "kwargs": [{...}, ...], "mode": "strict" | "loose" | "both"}
    chat_reference  {"reference": "..."}
    chat_open       null
    function        {"function": "rewards.accuracy_reward", "columns": {...}}, with "group": true if it scores all
                    responses to a prompt in one call
    environment     null: the prompt's environment returns the reward
    reward_model    {"reward_model": "helpful"}
    weighted        {"rewards": [{"verifier": ..., "weight": ..., "ground_truth": ...}, ...]}
    my.own          {"ground_truth": ...}: a user's verifier, named by its import path (`tasks.verifiers.custom`)

Importing this package loads no checker: SymPy and the others are imported only in the worker processes.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from tasks.failures import MistakeError
from tasks.verifiers import registry
from tasks.verifiers.calls import Call, Messages, VerifierStats
from tasks.verifiers.config import DEFAULTS, VerifiersConfig
from tasks.verifiers.pool import VerifierPool
from tasks.verifiers.registry import collect_verifiers, stated_answer
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
    "collect_verifiers",
    "configure",
    "missing_resources",
    "open_pool",
    "stated_answer",
    "verify",
]


def verify(verifier: str, response: str, ground_truth: Any, *, messages: Messages | None = None) -> Score:
    """Score one response in a pool with one worker per verifier, which all threads of this process share.

    The first call starts the pool. Bad responses and ground truths never raise an exception: read `Score.error` first.

    Args:
        verifier: one of `VERIFIERS`, or the import path of a user's verifier.
        response: the policy's text, including its thinking part.
        ground_truth: a JSON value, as described in the module's docstring.
        messages: the messages of the prompt, for verifiers that read the prompt.

    Raises:
        ValueError: `verifier` is unknown.
    """
    return _shared.pool().submit(verifier, response, ground_truth, messages).result()


def configure(config: VerifiersConfig) -> None:
    """Set the options of `verify`. Without this call, the defaults are used, without an LLM judge."""
    _shared.configure(config)


def check_ground_truth(verifier: str, ground_truth: Any) -> str | None:
    """Return why a ground truth is malformed, or None. It takes milliseconds and is meant to run before expensive work.

    Raises `ValueError` if the verifier is unknown.
    """
    try:
        registry.check_ground_truth(verifier, ground_truth)
    except GroundTruthError as reason:
        return str(reason)
    return None


def missing_resources(verifier: str, ground_truth: Any, config: VerifiersConfig = DEFAULTS) -> list[str]:
    """Return the names of the resources that a well-formed ground truth needs and this machine lacks."""
    elsewhere = ("code",) if config.code.remote is not None else ()
    missing = registry.missing_resources(verifier, ground_truth, elsewhere)
    if config.judge is None and not collect_verifiers(verifier, ground_truth).isdisjoint(registry.CHAT):
        missing.append("a judge (verifiers.judge: a model to serve, or the URL of an endpoint)")
    unknown = registry.collect_reward_models(verifier, ground_truth) - set(config.reward_models)
    known = ", ".join(config.reward_models) or "none"
    return [*missing, *(f"a reward model {name!r} (verifiers.reward_models has {known})" for name in sorted(unknown))]


@contextmanager
def open_pool(workers: int, config: VerifiersConfig, verifiers: Iterable[str]) -> Iterator[VerifierPool]:
    """Open a pool for `verifiers`, and begin to load what they need; close it when the block ends.

    If chat is among them and the judge is a model to serve, its server runs for the duration of the block. The reward
    models are loaded if `reward_model` is among them.

    Args:
        workers: processes of each verifier that run at the same time.
        config: limits and options of the verifiers.
        verifiers: names of the verifiers that will be called.

    Raises:
        ValueError: chat is among them and no judge is configured, or a reward model cannot be loaded.
    """
    verifiers = set(verifiers)
    if registry.REWARD_MODEL not in verifiers:
        config = config.model_copy(update={"reward_models": {}})
    with ExitStack() as stack:
        gpus_of_judge = config.judge_gpus
        if set(verifiers) & set(registry.CHAT):
            if config.judge is None:
                raise MistakeError("there are chat prompts and no judge for them: give verifiers.judge")
            from tasks.verifiers.chat.server import serve

            config = config.model_copy(update={"judge": stack.enter_context(serve(config.judge))})
        elif config.judge is not None:
            config, gpus_of_judge = config.model_copy(update={"judge": None}), 0
        pool = stack.enter_context(VerifierPool(workers, config, judge_gpus=gpus_of_judge))
        pool.start(verifiers)
        yield pool


class _Shared:
    """Stores the one-worker pool of `verify`. A forked child drops its parent's pool, whose threads it lacks."""

    def __init__(self) -> None:
        self.forget()
        os.register_at_fork(after_in_child=self.forget)

    def forget(self) -> None:
        """Drop the pool without closing it, and reset the options to their defaults."""
        self._lock = threading.Lock()
        self._config = VerifiersConfig()
        self._pool: VerifierPool | None = None

    def configure(self, config: VerifiersConfig) -> None:
        """Set the options, and close the pool, which was created with the old ones."""
        with self._lock:
            self._config = config
            if self._pool is not None:
                self._pool.close()
            self._pool = None

    def pool(self) -> VerifierPool:
        """Return the pool, and start it if necessary."""
        with self._lock:
            if self._pool is None:
                self._pool = VerifierPool(1, self._config)
            return self._pool


_shared = _Shared()
