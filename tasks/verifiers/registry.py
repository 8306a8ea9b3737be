"""Maps verifiers to their modules, and runs the checks that come before scoring.

`judge` runs inside a worker process (`tasks.verifiers.worker`), and heavy libraries are imported only there. Programs
are run by a code server (`tasks.verifiers.code`), and LLM judges are queried over a network (`tasks.verifiers.chat`).
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, Protocol, cast

from tasks.verifiers.calls import Messages, Response
from tasks.verifiers.config import CHAT, REWARD_MODEL
from tasks.verifiers.scores import VERIFIERS, CannotJudge, Score, is_own
from tasks.verifiers.weighted import list_terms

TOO_LARGE = "too large or too deep to judge"
"""Beginning of the detail of a response that exhausted the memory or the stack."""

_MODULES = {
    "math": "tasks.verifiers.mathematics",
    "code": "tasks.verifiers.code",
    "precise_if": "tasks.verifiers.instructions",
    "function": "tasks.verifiers.functions",
    "environment": "tasks.verifiers.environment_rewards",
    REWARD_MODEL: "tasks.verifiers.reward_models",
}


class VerifierModule(Protocol):
    """The interface of a verifier's module: checks of a ground truth before scoring."""

    def check_ground_truth(self, ground_truth: Any) -> None:
        """Raise `GroundTruthError` if this verifier does not accept the ground truth."""

    def missing_resources(self, ground_truth: Any) -> list[str]:
        """Return the names of the resources that this well-formed ground truth needs and this machine lacks."""


class InProcessVerifier(VerifierModule, Protocol):
    """The interface of a verifier's module that scores in a worker process."""

    def judge(self, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Score a response; raise `CannotJudge` if that is impossible for a reason other than the response."""

    def warm_up(self) -> None:
        """Load what the first call would load, so that no response is charged for it."""


def require(verifier: str) -> None:
    """Raise `ValueError` if `verifier` is unknown."""
    if verifier not in VERIFIERS and not is_own(verifier):
        raise ValueError(
            f"verifier {verifier!r} is unknown; accepted: {', '.join(VERIFIERS)}, and an import path such as "
            "my_verifiers.chess"
        )


def check_ground_truth(verifier: str, ground_truth: Any) -> None:
    """Raise `GroundTruthError` if a ground truth is malformed, or `ValueError` if the verifier is unknown."""
    require(verifier)
    for term in list_terms(verifier, ground_truth):
        if term.verifier in CHAT:
            from tasks.verifiers.chat import prompts

            prompts.check_ground_truth(term.verifier, term.ground_truth)
        else:
            load_module(term.verifier).check_ground_truth(term.ground_truth)


def missing_resources(verifier: str, ground_truth: Any, elsewhere: Collection[str] = ()) -> list[str]:
    """Return the names of the resources that a well-formed ground truth needs and this machine lacks.

    Args:
        verifier: its name.
        ground_truth: its ground truth.
        elsewhere: verifiers that run on another machine and need nothing here; chat never needs anything here.
    """
    require(verifier)
    here = [term for term in list_terms(verifier, ground_truth) if term.verifier not in (*CHAT, *elsewhere)]
    return [need for term in here for need in load_module(term.verifier).missing_resources(term.ground_truth)]


def collect_verifiers(verifier: str, ground_truth: Any) -> set[str]:
    """Return the verifiers that a well-formed ground truth uses: the given one, or all that a weighted one combines."""
    return {term.verifier for term in list_terms(verifier, ground_truth)}


def collect_reward_models(verifier: str, ground_truth: Any) -> set[str]:
    """Return the names of the reward models that a well-formed ground truth uses, alone or in a weighted one."""
    terms = list_terms(verifier, ground_truth)
    return {str(term.ground_truth["reward_model"]) for term in terms if term.verifier == REWARD_MODEL}


def load_module(verifier: str) -> VerifierModule:
    """Import and return the module of a verifier. For a user's verifier, return an adapter of its module."""
    if is_own(verifier):
        from tasks.verifiers.custom import load_own_verifier

        return load_own_verifier(verifier)
    return cast(VerifierModule, importlib.import_module(_MODULES[verifier]))


def load_in_process_module(verifier: str) -> InProcessVerifier:
    """Import and return the module of a verifier that scores in a worker process, as `load_module` does."""
    return cast(InProcessVerifier, load_module(verifier))


def answer_of(verifier: str, response: Response, ground_truth: Any) -> str | None:
    """Return a text of answer and reference that determines the score of a well-formed call, or None without one.

    Two responses with the same text have the same score.
    """
    read = getattr(load_in_process_module(verifier), "answer_of", None)
    return None if read is None else read(response, ground_truth)


def stated_answer(verifier: str, response: str, ground_truth: Any) -> str | None:
    """Return the final answer that a verifier extracts from a response, or None without one."""
    read = getattr(load_in_process_module(verifier), "stated_answer", None)
    return None if read is None else read(response, ground_truth)


def judge(verifier: str, response: Any, ground_truth: Any, messages: Messages | None) -> Score:
    """Score one response in this process, without limits: the worker process sets them.

    A response that exhausts the stack scores 0; every other failure except the following is a `Score.error`.

    Raises:
        MemoryError: out of memory, because of this response or earlier ones.
    """
    try:
        return load_in_process_module(verifier).judge(response, ground_truth, messages)
    except RecursionError as excess:
        return score_too_large(excess)
    except MemoryError:
        raise
    except CannotJudge as reason:
        return Score.from_error(reason)
    except Exception as failure:  # a bug must reach the caller as an error, not kill the worker
        return Score.from_error(f"{verifier} failed: {type(failure).__name__}: {failure}")


def score_too_large(excess: Exception) -> Score:
    """Return the score 0 of a response that exhausted the memory or the stack."""
    return Score.binary(False, f"{TOO_LARGE}: {type(excess).__name__}")
