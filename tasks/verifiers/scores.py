"""What a judgement is: the score, its failure, and the names of the verifiers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, get_args

Verifier = Literal["math", "code", "precise_if", "chat_reference", "chat_open", "function", "weighted"]
VERIFIERS: tuple[Verifier, ...] = get_args(Verifier)


class CannotJudge(Exception):  # noqa: N818 - reads as the sentence it is
    """The judgement failed for a reason that is not the response's: it becomes `Score.error`, never a 0."""


class GroundTruthError(CannotJudge):
    """The ground truth is not what its verifier accepts."""

    def __str__(self) -> str:
        """The reason, told apart from a failure of the judge."""
        return f"malformed ground truth: {super().__str__()}"


class Reward(NamedTuple):
    """One of several rewards of a response: any finite number, or None where it does not apply to this response."""

    name: str
    weight: float
    value: float | None


@dataclass(frozen=True)
class Score:
    """The judgement of one response. Look at `error` first: where it is set, the other fields mean nothing.

    Attributes:
        value: how right the response is, in [0, 1], as pass rates and evaluations count it; 0.0 where `error` is set,
            which is then not a score of 0.
        passed: the response is right as a whole; False where `error` is set.
        detail: one line for people: what was found, and what was wrong with it.
        error: why the response could not be judged (malformed ground truth, missing resource, dead worker); None
            where it was judged. A response that costs more time or memory than it may is judged: it scores 0.
        rewards: what it is made of, where a prompt has several rewards or a custom one.
        timed_out: a limit of time had a part in it; such a score is not remembered.
    """

    value: float
    passed: bool
    detail: str
    error: str | None = None
    rewards: tuple[Reward, ...] = ()
    timed_out: bool = False

    def __post_init__(self) -> None:
        """Hold the invariant that rewards are built on."""
        assert 0.0 <= self.value <= 1.0, f"score {self.value} is outside [0, 1]"
        assert self.error is None or (self.value == 0.0 and not self.passed), "an unjudged response has no score"

    @property
    def reward(self) -> float:
        """What training maximises: the weighted sum of the rewards that apply (TRL, Axolotl), or else `value`."""
        if not self.rewards:
            return self.value
        return math.fsum(part.weight * part.value for part in self.rewards if part.value is not None)

    @classmethod
    def binary(cls, passed: bool, detail: str) -> Score:
        """The score of an all-or-nothing verifier."""
        return cls(float(passed), passed, detail)

    @classmethod
    def overrun(cls, detail: str) -> Score:
        """The score of a response that took more time than it may."""
        return cls(0.0, False, detail, timed_out=True)

    @classmethod
    def unjudged(cls, error: str) -> Score:
        """The score of a response that could not be judged."""
        return cls(0.0, False, "", error)

    @classmethod
    def from_json(cls, fields: dict[str, Any]) -> Score:
        """The inverse of `dataclasses.asdict` after its way through JSON."""
        return cls(**fields | {"rewards": tuple(Reward(*part) for part in fields["rewards"])})

    @classmethod
    def of_rewards(cls, rewards: Sequence[Reward], passed: bool, detail: str) -> Score:
        """The score of several rewards: their weighted mean, held within [0, 1].

        Raises:
            CannotJudge: none of them applies.
        """
        given = [(part.weight, part.value) for part in rewards if part.value is not None]
        total = math.fsum(weight for weight, _ in given)
        if not given or total <= 0:
            raise CannotJudge(f"none of the rewards {', '.join(part.name for part in rewards)} applies")
        mean = math.fsum(weight * value for weight, value in given) / total
        return cls(min(max(mean, 0.0), 1.0), passed, detail, rewards=tuple(rewards))
