"""Which verifiers exist, where each is judged, and the one function that judges.

`judge` runs inside a worker process (`tasks.verifiers.worker`); everything heavy is imported there and not before.
Programs are run by a code service (`tasks.verifiers.code`), and judges of chat are asked over a network
(`tasks.verifiers.chat`).
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from typing import Any, Protocol, cast

from tasks.verifiers.calls import Messages
from tasks.verifiers.scores import VERIFIERS, CannotJudge, Score

WEIGHTED = "weighted"
CHAT = ("chat_reference", "chat_open")

_MODULES = {
    "math": "tasks.verifiers.mathematics",
    "code": "tasks.verifiers.code",
    "precise_if": "tasks.verifiers.instructions",
    "function": "tasks.verifiers.functions",
}


class VerifierModule(Protocol):
    """What the module of a verifier holds."""

    def check_ground_truth(self, ground_truth: Any) -> None:
        """Raise `GroundTruthError` where the ground truth is not what this verifier accepts."""

    def missing_resources(self, ground_truth: Any) -> list[str]:
        """What judging by this (well-formed) ground truth needs and this machine lacks, each by name."""


class InProcessVerifier(VerifierModule, Protocol):
    """What the module of a verifier holds that judges in a worker process."""

    def judge(self, response: str, ground_truth: Any, messages: Messages | None) -> Score:
        """Score a response; raises `CannotJudge` where that is impossible for a reason not the response's."""

    def warm_up(self) -> None:
        """Load what the first judgement would load, so that no response is charged for it."""


def require(verifier: str) -> None:
    """Raise `ValueError` where `verifier` is unknown."""
    if verifier not in VERIFIERS:
        raise ValueError(f"verifier {verifier!r} is unknown; accepted: {', '.join(VERIFIERS)}")


def check_ground_truth(verifier: str, ground_truth: Any) -> None:
    """Raise `GroundTruthError` where a ground truth is malformed, `ValueError` where the verifier is unknown."""
    require(verifier)
    if verifier == WEIGHTED:
        from tasks.verifiers.weighted import parts_of

        for part in parts_of(ground_truth):
            check_ground_truth(part.verifier, part.ground_truth)
    elif verifier in CHAT:
        from tasks.verifiers import chat

        chat.check_ground_truth(verifier, ground_truth)
    else:
        room(verifier).check_ground_truth(ground_truth)


def missing_resources(verifier: str, ground_truth: Any, elsewhere: Collection[str] = ()) -> list[str]:
    """What judging by a well-formed ground truth needs and this machine lacks, each by name.

    Verifiers that are `elsewhere` need nothing here, and neither does chat.
    """
    require(verifier)
    if verifier == WEIGHTED:
        from tasks.verifiers.weighted import parts_of

        parts = parts_of(ground_truth)
        return [need for part in parts for need in missing_resources(part.verifier, part.ground_truth, elsewhere)]
    return [] if verifier in (*CHAT, *elsewhere) else room(verifier).missing_resources(ground_truth)


def verifiers_of(verifier: str, ground_truth: Any) -> set[str]:
    """The verifiers that a well-formed ground truth asks for: itself, or those of its parts."""
    if verifier != WEIGHTED:
        return {verifier}
    from tasks.verifiers.weighted import parts_of

    return {part.verifier for part in parts_of(ground_truth)}


def room(verifier: str) -> VerifierModule:
    """The module of a verifier, imported on first use."""
    return cast(VerifierModule, importlib.import_module(_MODULES[verifier]))


def computing_room(verifier: str) -> InProcessVerifier:
    """The module of a verifier that judges in a worker process."""
    return cast(InProcessVerifier, room(verifier))


def judge(verifier: str, response: Any, ground_truth: Any, messages: Messages | None) -> Score:
    """Score one response. Without limits of its own: a lane's worker sets them.

    Running out of stack is the response's doing and scores 0; every other failure is `Score.error`.

    Raises:
        MemoryError: there was none left, whether this response or those before it took it.
    """
    try:
        return computing_room(verifier).judge(response, ground_truth, messages)
    except RecursionError as excess:
        return too_large(excess)
    except MemoryError:
        raise
    except CannotJudge as reason:
        return Score.unjudged(str(reason))
    except Exception as failure:  # a checker's own bug must reach the caller as an error, not kill the worker
        return Score.unjudged(f"{verifier} failed: {type(failure).__name__}: {failure}")


def too_large(excess: Exception) -> Score:
    """The score of a response that took all memory or stack that there was."""
    return Score.binary(False, f"too large or too deep to judge: {type(excess).__name__}")
