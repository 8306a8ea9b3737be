"""Defines the score of a response, its failures, and the names of the verifiers."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

Verifier = Literal[
    "math",
    "code",
    "precise_if",
    "chat_reference",
    "chat_open",
    "function",
    "reward_model",
    "environment",
    "weighted",
]
"""Name of a built-in verifier; a user's verifier is named by its import path (`is_own`)."""
VERIFIERS: tuple[Verifier, ...] = get_args(Verifier)
"""Names of all built-in verifiers."""
OWN = r"[^\W\d]\w*(\.[^\W\d]\w*)+"
"""Regular expression of the name of a user's verifier: the import path of a module, with at least one dot."""


def is_own(verifier: object) -> bool:
    """Return whether a name is one of a user's verifier: an import path such as `my_verifiers.chess`."""
    return isinstance(verifier, str) and re.fullmatch(OWN, verifier) is not None


class FunctionFailure(NamedTuple):
    """A failure of a user's reward function or verifier on one response, without details that depend on the response.

    Attributes:
        function: import path of the function, or name of the verifier.
        reason: what went wrong, with the line of the user's file if there is one; equal for failures of one kind.
        may_pass: True if the network or a service that the function uses failed, so that a later attempt may succeed.
    """

    function: str
    reason: str
    may_pass: bool = False


class SlowCall(NamedTuple):
    """A slow call of a user's reward function: its import path, and its duration in seconds."""

    function: str
    seconds: float


class CannotJudge(Exception):  # noqa: N818 - named after the event
    """A response cannot be scored, for a reason other than the response. It becomes `Score.error`, never a score of 0.

    Attributes:
        failure: the failure of the user's reward function that is the reason, or None for any other reason.
        timed_out: True if a time limit is the reason.
    """

    def __init__(self, reason: str, failure: FunctionFailure | None = None, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.failure = failure
        self.timed_out = timed_out

    @classmethod
    def of_code(cls, what: str, name: str, reason: str, details: str = "") -> CannotJudge:
        """Return the error of a user's code.

        Args:
            what: the kind of code, such as `reward function`.
            name: its import path.
            reason: what went wrong, with the space or colon before it, without details that depend on the response.
            details: these details.
        """
        return cls(f"{what} {name}{reason}{details}", FunctionFailure(name, reason.lstrip(": ")))


class GroundTruthError(CannotJudge):
    """The ground truth does not have the form that its verifier accepts."""

    @property
    def reason(self) -> str:
        """Human-readable description of the error in the ground truth."""
        return super().__str__()

    def __str__(self) -> str:
        """Return the reason with a prefix that distinguishes it from a failure of the verifier."""
        return f"malformed ground truth: {super().__str__()}"


class Reward(NamedTuple):
    """One of several rewards of a response.

    Attributes:
        name: its name in metrics.
        weight: its weight in the sum, any finite number.
        value: any finite number, or None if the reward does not apply to this response.
    """

    name: str
    weight: float
    value: float | None


@dataclass(frozen=True)
class Score:
    """The score of one response. Read `error` first: if it is set, the other fields have no meaning.

    Attributes:
        value: correctness of the response, in [0, 1], as used by mean scores. It is 0.0 if `error` is set, but is then
            not a score of 0.
        passed: True if the response passes, as used by pass rates. For math and precise_if: a score of 1; for code: all
            tests passed; for chat: a grade of at least `pass_value`; for a function: a value of at least 1. If there
            are several rewards the first decides. False if `error` is set.
        detail: one human-readable line: the extracted answer, and what was wrong with it.
        error: the reason why the response could not be scored (malformed ground truth, missing resource, dead worker),
            or None if it was scored. A response that exceeds its limits of time or memory is scored: it gets 0.
        rewards: the individual rewards, if a prompt has several rewards or a custom one. Rewards of weight 0 are
            recorded and part of no sum (`precise_if` in mode `both`).
        timed_out: True if a time limit affected the score; such a score is not cached.
        failure: the failure of a user's reward function or verifier that caused `error`, or None for any other reason.
        slow: the slowest call of a user's reward function, if one was slow (`functions.SLOW_SECONDS`).
    """

    value: float
    passed: bool
    detail: str
    error: str | None = None
    rewards: tuple[Reward, ...] = ()
    timed_out: bool = False
    failure: FunctionFailure | None = None
    slow: SlowCall | None = None

    def __post_init__(self) -> None:
        """Assert the invariants that rewards rely on."""
        assert 0.0 <= self.value <= 1.0, f"score {self.value} is outside [0, 1]"
        assert self.error is None or (self.value == 0.0 and not self.passed), "an unscored response has no score"

    @property
    def reward(self) -> float:
        """The value that training maximises: the weighted sum of the rewards that apply, or `value` without rewards.

        TRL and Axolotl sum the rewards of several functions in the same way.
        """
        if not self.rewards:
            return self.value
        return math.fsum(part.weight * part.value for part in self.rewards if part.value is not None)

    @classmethod
    def binary(cls, passed: bool, detail: str) -> Score:
        """Return the score of an all-or-nothing verifier: 1 if `passed`, else 0."""
        return cls(float(passed), passed, detail)

    @classmethod
    def overrun(cls, detail: str) -> Score:
        """Return the score 0 of a response that exceeded its time limit."""
        return cls(0.0, False, detail, timed_out=True)

    @classmethod
    def from_error(
        cls, error: CannotJudge | str, failure: FunctionFailure | None = None, *, timed_out: bool = False
    ) -> Score:
        """Return the score of a response that could not be scored for the reason `error`."""
        if isinstance(error, CannotJudge):
            failure, timed_out = error.failure, error.timed_out
        return cls(0.0, False, "", str(error), timed_out=timed_out, failure=failure)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Score:
        """Return the score from the JSON fields of its `dataclasses.asdict`."""
        failure, slow = fields["failure"], fields["slow"]
        tuples = {
            "rewards": tuple(Reward(*part) for part in fields["rewards"]),
            "failure": None if failure is None else FunctionFailure(*failure),
            "slow": None if slow is None else SlowCall(*slow),
        }
        return cls(**fields | tuples)

    @classmethod
    def from_rewards(
        cls, rewards: Sequence[Reward], passed: bool, detail: str, timed_out: bool = False, slow: SlowCall | None = None
    ) -> Score:
        """Return the score of several rewards: the weighted mean of the applicable ones, clipped to [0, 1].

        If no reward applies, it is an error.
        """
        given = [(part.weight, part.value) for part in rewards if part.value is not None]
        total = math.fsum(weight for weight, _ in given)
        if not given or total <= 0:
            return cls.from_error(f"none of the rewards {', '.join(part.name for part in rewards)} applies")
        mean = math.fsum(weight * value for weight, value in given) / total
        value = min(max(mean, 0.0), 1.0)
        return cls(value, passed, detail, rewards=tuple(rewards), timed_out=timed_out, slow=slow)
