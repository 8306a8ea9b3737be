"""The types of a judgement: the score, its failures, and the names of the verifiers."""

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
"""Name of a verifier of this project; a verifier of a user's own has its import path as its name (`is_own`)."""
VERIFIERS: tuple[Verifier, ...] = get_args(Verifier)
"""All names of verifiers of this project."""
OWN = r"[^\W\d]\w*(\.[^\W\d]\w*)+"
"""Regular expression of the name of a verifier of a user's own: the import path of a module, with a dot in it."""


def is_own(verifier: object) -> bool:
    """Return whether a name is that of a verifier of a user's own: an import path such as `my_verifiers.chess`."""
    return isinstance(verifier, str) and re.fullmatch(OWN, verifier) is not None


class FunctionFailure(NamedTuple):
    """The failure of a user's reward function, or verifier, on one response, without what depends on the response.

    Attributes:
        function: import path of the function, or name of the verifier.
        reason: what went wrong, with the line of the user's file where there is one; equal for failures of one kind.
        may_pass: True where the network or a service failed that the function asks: a later attempt may succeed.
    """

    function: str
    reason: str
    may_pass: bool = False


class SlowCall(NamedTuple):
    """A call of a user's reward function that took long: its import path, and the seconds that passed."""

    function: str
    seconds: float


class CannotJudge(Exception):  # noqa: N818 - reads as the sentence it is
    """A failure to judge for a reason that is not the response's: it becomes `Score.error`, never a score of 0.

    Attributes:
        failure: the failure of the user's reward function that is the reason; None where another reason is.
        timed_out: True if a limit of time is the reason.
    """

    def __init__(self, reason: str, failure: FunctionFailure | None = None, *, timed_out: bool = False) -> None:
        super().__init__(reason)
        self.failure = failure
        self.timed_out = timed_out


class GroundTruthError(CannotJudge):
    """A failure to judge because the ground truth does not have the form that its verifier accepts."""

    @property
    def reason(self) -> str:
        """The fault of the ground truth, for people."""
        return super().__str__()

    def __str__(self) -> str:
        """Return the reason with a prefix that sets it apart from a failure of the judge."""
        return f"malformed ground truth: {super().__str__()}"


class Reward(NamedTuple):
    """One of several rewards of a response.

    Attributes:
        name: its name in metrics.
        weight: its weight in the sum, any finite number.
        value: any finite number, or None where the reward does not apply to this response.
    """

    name: str
    weight: float
    value: float | None


@dataclass(frozen=True)
class Score:
    """The judgement of one response. Read `error` first: where it is set, the other fields mean nothing.

    Attributes:
        value: the degree to which the response is right, in [0, 1], as mean scores count it; 0.0 where `error` is set,
            which is then not a score of 0.
        passed: True if the response is right as a whole, as pass rates count it: for math and precise_if a score of 1,
            for code all tests passed, for chat a grade of `pass_value` or more, for a function a value of 1 or more; of
            several rewards the first decides. False where `error` is set.
        detail: one line for people: the answer that was read, and what was wrong with it.
        error: the reason why the response could not be judged (malformed ground truth, missing resource, dead worker);
            None where it was judged. A response that costs more time or memory than it may is judged: it scores 0.
        rewards: the rewards that it consists of, where a prompt has several rewards or a custom one; those of weight 0
            are recorded and in no sum (`precise_if` in mode `both`).
        timed_out: True if a limit of time had a part in it; such a score is not cached.
        failure: the failure of a user's reward function, or verifier, behind `error`; None where another reason is.
        slow: the slowest call of a user's reward function, where one took long (`functions.SLOW_SECONDS`).
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
        """Assert the invariants that rewards are built on."""
        assert 0.0 <= self.value <= 1.0, f"score {self.value} is outside [0, 1]"
        assert self.error is None or (self.value == 0.0 and not self.passed), "an unjudged response has no score"

    @property
    def reward(self) -> float:
        """The value that training maximises: the weighted sum of the rewards that apply, or else `value`.

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
        """Return the score 0 of a response that took more time than it may."""
        return cls(0.0, False, detail, timed_out=True)

    @classmethod
    def unjudged(
        cls, error: CannotJudge | str, failure: FunctionFailure | None = None, *, timed_out: bool = False
    ) -> Score:
        """Return the score of a response that could not be judged for the reason `error`."""
        if isinstance(error, CannotJudge):
            failure, timed_out = error.failure, error.timed_out
        return cls(0.0, False, "", str(error), timed_out=timed_out, failure=failure)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Score:
        """Return the score whose `dataclasses.asdict` went through JSON."""
        failure, slow = fields["failure"], fields["slow"]
        tuples = {
            "rewards": tuple(Reward(*part) for part in fields["rewards"]),
            "failure": None if failure is None else FunctionFailure(*failure),
            "slow": None if slow is None else SlowCall(*slow),
        }
        return cls(**fields | tuples)

    @classmethod
    def of_rewards(cls, rewards: Sequence[Reward], passed: bool, detail: str) -> Score:
        """Return the score of several rewards: their weighted mean over those that apply, clipped to [0, 1].

        Raises:
            CannotJudge: none of them applies.
        """
        given = [(part.weight, part.value) for part in rewards if part.value is not None]
        total = math.fsum(weight for weight, _ in given)
        if not given or total <= 0:
            raise CannotJudge(f"none of the rewards {', '.join(part.name for part in rewards)} applies")
        mean = math.fsum(weight * value for weight, value in given) / total
        return cls(min(max(mean, 0.0), 1.0), passed, detail, rewards=tuple(rewards))
