"""Which verifiers exist, where each is judged, and the one function that judges.

`judge` runs inside a worker process (`tasks.verifiers.processes`); everything heavy is imported there and not before.
Judges of chat are asked over a network and need no process: see `tasks.verifiers.chat`.
"""

from __future__ import annotations

import importlib
from collections.abc import Collection
from functools import cache
from typing import Any, Protocol, cast

from tasks.verifiers.calls import Messages
from tasks.verifiers.scores import VERIFIERS, CannotJudge, Score

WEIGHTED = "weighted"
CHAT = ("chat_reference", "chat_open")

_ROOMS = {
    "math": "tasks.verifiers.mathematics",
    "code": "tasks.verifiers.code",
    "precise_if": "tasks.verifiers.instructions",
    "function": "tasks.verifiers.functions",
}
_WARM = ("math", "code", "precise_if")


class Room(Protocol):
    """What the module of a verifier holds."""

    def check_ground_truth(self, ground_truth: Any) -> None:
        """Raise `GroundTruthError` where the ground truth is not what this verifier accepts."""

    def missing_resources(self, ground_truth: Any) -> list[str]:
        """What judging by this (well-formed) ground truth needs and this machine lacks, each by name."""

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


def room(verifier: str) -> Room:
    """The module that judges in a worker process, imported on first use."""
    return cast(Room, importlib.import_module(_ROOMS[verifier]))


@cache
def warm_up() -> None:
    """Load every room that a process of ours judges in; once, also where a process was forked from a warm one."""
    for verifier in _WARM:
        room(verifier).warm_up()


def judge(verifier: str, response: Any, ground_truth: Any, messages: Messages | None) -> Score:
    """Score one response. Without limits of its own: the pool kills what overruns.

    Running out of memory or stack is the response's doing and scores 0; every other failure is `Score.error`.
    """
    if not isinstance(response, str):
        return Score.unjudged(f"the response is of type {type(response).__name__}, not a string")
    try:
        return room(verifier).judge(response, ground_truth, messages)
    except (MemoryError, RecursionError) as excess:
        return Score.binary(False, f"too large or too deep to judge: {type(excess).__name__}")
    except CannotJudge as reason:
        return Score.unjudged(str(reason))
    except Exception as failure:  # a checker's own bug must reach the caller as an error, not kill the worker
        return Score.unjudged(f"{verifier} failed: {type(failure).__name__}: {failure}")
