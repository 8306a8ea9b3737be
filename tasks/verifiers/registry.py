"""Which verifiers exist, and the one function that judges.

`judge` runs inside a worker process (`tasks.verifiers.pool`); everything heavy is imported there and not before.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Any, Protocol, cast

from tasks.verifiers.scores import VERIFIERS, CannotJudge, Score

Messages = Sequence[Mapping[str, str]]

_ROOMS = {
    "math": "tasks.verifiers.mathematics",
    "precise_if": "tasks.verifiers.instructions",
}


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


def available() -> tuple[str, ...]:
    """The names that `verify` accepts now."""
    return tuple(_ROOMS)


def require(verifier: str) -> None:
    """Raise `ValueError` where `verifier` is not one of `available()`."""
    if verifier in _ROOMS:
        return
    known = "has no implementation yet" if verifier in VERIFIERS else "is unknown"
    raise ValueError(f"verifier {verifier!r} {known}; accepted: {', '.join(_ROOMS)}")


def room(verifier: str) -> Room:
    """The module behind a name, imported on first use; raises `ValueError` for a name that is not available."""
    require(verifier)
    return cast(Room, importlib.import_module(_ROOMS[verifier]))


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
