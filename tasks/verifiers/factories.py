"""Creates what a pool uses to score: worker processes of verifiers, the LLM judge, and the reward models."""

from __future__ import annotations

import os

from tasks.verifiers import registry
from tasks.verifiers.calls import Verifier
from tasks.verifiers.config import VerifiersConfig
from tasks.verifiers.verifier_processes import ProcessLimits, VerifierProcesses

WALL_FACTOR, FUNCTION_WALL_FACTOR = 100, 6
"""Wall seconds per CPU second of the limit, after which a call is stopped.

`WALL_FACTOR` is for verifiers that only compute, but may have to wait for a core. `FUNCTION_WALL_FACTOR` is for a
user's function, which may wait for anything."""


def make_limits(workers: int, config: VerifiersConfig) -> ProcessLimits:
    """Return the limits of the processes of a verifier that only computes."""
    seconds, processes = config.time_limit_seconds, config.processes(workers)
    return ProcessLimits(processes, seconds, WALL_FACTOR * seconds, config.memory_mib)


def make_verifier_processes(workers: int, config: VerifiersConfig) -> dict[str, VerifierProcesses]:
    """Return the worker processes of the built-in verifiers, by verifier."""
    computing, seconds = make_limits(workers, config), config.time_limit_seconds
    calling = computing._replace(
        wall_seconds=FUNCTION_WALL_FACTOR * seconds, budgets=False, locked_up=False, overlapping=True
    )
    return {
        "math": VerifierProcesses("math", computing),
        "precise_if": VerifierProcesses("precise_if", computing, os.environ.get("NLTK_DATA")),
        "function": VerifierProcesses("function", calling),
    }


def judge_of_chat(config: VerifiersConfig) -> dict[str, Verifier]:
    """Return the LLM judge, loaded or connected here, by the verifiers that use it; empty if none is configured."""
    if config.judge is None:
        return {}
    from tasks.verifiers.chat import make_judge

    return dict.fromkeys(registry.CHAT, make_judge(config.judge))


def reward_models(config: VerifiersConfig, judge_gpus: int) -> dict[str, Verifier]:
    """Load and return the reward models; empty if none is configured.

    `judge_gpus`: number of GPUs, the last of this process, that the LLM judge uses.
    """
    if not config.reward_models:
        return {}
    from tasks.verifiers.chat.reward_model import NamedRewardModels

    return {registry.REWARD_MODEL: NamedRewardModels(config.reward_models, judge_gpus)}
