"""Monitors the user's reward functions, verifiers and environments through one stage, from the scores that it gets.

A function that fails on response after response ends the stage early, to save the cost of its rollouts. A function that
is slow or fails on some responses is logged once.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from dataclasses import dataclass, field

from tasks.failures import InfrastructureError, MistakeError
from tasks.verifiers.scores import FunctionFailure, Score

logger = logging.getLogger(__name__)

FAILURES = 16
"""Number of consecutive failures of one kind after which a function counts as always failing."""
PROMPTS = 3
"""Number of prompts that these failures must cover, because one odd row fails on all of its responses."""


class RewardFunctionError(MistakeError):
    """A user's reward function or verifier fails on every response: its code, or its input, is wrong."""


class RewardServiceError(InfrastructureError):
    """A user's reward function fails on every response, because the network or a service is unavailable."""


@dataclass
class _Streak:
    """The failures of one function since its last success.

    Attributes:
        failure: the last failure.
        alike: number of the last consecutive failures of the same kind.
        prompts: ids of the prompts of these failures, at most `PROMPTS`.
        total: number of all failures.
        error: the message of the last failure.
    """

    failure: FunctionFailure
    alike: int = 0
    prompts: set[str] = field(default_factory=set)
    total: int = 0
    error: str = ""

    def add(self, prompt_id: str, failure: FunctionFailure, error: str) -> None:
        if failure != self.failure:
            self.failure, self.alike, self.prompts = failure, 0, set()
        self.alike += 1
        self.total += 1
        self.error = error
        if len(self.prompts) < PROMPTS:
            self.prompts.add(prompt_id)

    @property
    def goes_on(self) -> bool:
        return self.alike >= FAILURES and len(self.prompts) >= PROMPTS


@dataclass
class LoggedFunctions:
    """The reward functions that the log of one stage has already named; every `FunctionWatch` of the stage shares it.

    Attributes:
        slow: names of the functions that were logged as slow.
        failing: names of the functions for which one failure was logged.
    """

    slow: set[str] = field(default_factory=set)
    failing: set[str] = field(default_factory=set)


class FunctionWatch:
    """Counts the successes and failures of the reward functions of one stage.

    Args:
        ends_when_away: If False, a function whose service is unavailable does not end the stage, which has other work.
        logged: functions that are not logged again. Optional. If None, none has been logged yet.
    """

    def __init__(self, *, ends_when_away: bool = True, logged: LoggedFunctions | None = None) -> None:
        self._ends_when_away = ends_when_away
        self._logged = logged or LoggedFunctions()
        self._streaks: dict[str, _Streak] = {}
        self._succeeded: set[str] = set()

    def judged(self, prompt_id: str, score: Score, environment: str | None = None) -> None:
        """Count the score of a response to a prompt.

        Args:
            prompt_id: the prompt.
            score: its score.
            environment: import path of the environment that played the episode, or None if it is not an episode.

        Raises:
            RewardFunctionError, RewardServiceError: the function has failed in the same way on `FAILURES` consecutive
                responses, to at least `PROMPTS` prompts.
        """
        self._log_slow(score)
        failure = score.failure
        if environment is not None and (failure.function != environment if failure else score.error is None):
            self.count_success([environment])
        if failure is None:
            self.count_success(part.name for part in score.rewards)
            return
        error = score.error or ""
        if failure.function not in self._logged.failing:
            self._logged.failing.add(failure.function)
            logger.warning("%s; the response counts as unjudged, and others like it are not logged", error)
        streak = self._streaks.setdefault(failure.function, _Streak(failure))
        streak.add(prompt_id, failure, error)
        if streak.goes_on:
            self._end(streak, f"on {streak.alike} responses one after another")

    def count_success(self, names: Iterable[str]) -> None:
        """Count a success of each of these functions or environments, including cached ones."""
        for name in names:
            self._succeeded.add(name)
            self._streaks.pop(name, None)

    def finish(self) -> None:
        """Check, at the end of a stage, that every function that failed has also succeeded.

        Raises:
            RewardFunctionError, RewardServiceError: a function has failed on every response.
        """
        for name, streak in self._streaks.items():
            if name not in self._succeeded:
                self._end(streak, f"on every response ({streak.total})")

    def _end(self, streak: _Streak, where: str) -> None:
        failure = streak.failure
        kinds = ("verifier", "environment", "reward function")
        what = next((kind for kind in kinds if streak.error.startswith(f"{kind} {failure.function}")), kinds[-1])
        begin = f"{what} {failure.function}"
        sentence = f"{begin} fails {where}: {streak.error.removeprefix(begin).lstrip(' :')}"
        if not failure.may_pass:
            raise RewardFunctionError(sentence)
        if self._ends_when_away:
            raise RewardServiceError(sentence)

    def _log_slow(self, score: Score) -> None:
        if score.slow is not None and score.slow.function not in self._logged.slow:
            self._logged.slow.add(score.slow.function)
            logger.warning(
                "reward function %s is slow: one call took %.1f s; more processes judge more responses at a time "
                "(difficulty.verifier_workers, rewards.workers in training, verifier_workers in evaluation)",
                *score.slow,
            )
