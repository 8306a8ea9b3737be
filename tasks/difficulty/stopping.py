"""Implements early stopping: a prompt is not sampled further once no score could change whether it is kept."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from tasks.config.loading import Config


class Bounds(Config):
    """The mean scores of the prompts that are kept."""

    max_mean_score: float | None = Field(0.625, gt=0, le=1)
    """Optional. A prompt is kept if its mean score, in [0, 1], is strictly below this value. If None, there is no
    bound."""
    min_mean_score: float | None = Field(None, ge=0, lt=1)
    """Optional. A prompt is kept if its mean score, in [0, 1], is strictly above this value. If None, there is no
    bound."""

    def __str__(self) -> str:
        above = [] if self.min_mean_score is None else [f"above {self.min_mean_score:.1%}"]
        below = [] if self.max_mean_score is None else [f"below {self.max_mean_score:.1%}"]
        return " and ".join([*above, *below]) or "of any value"

    def keep(self, mean_score: float) -> bool:
        """Return True for a mean score within the bounds."""
        return not self.is_too_easy(mean_score) and (self.min_mean_score is None or mean_score > self.min_mean_score)

    def is_too_easy(self, mean_score: float) -> bool:
        """Return True for a mean score that is not below the upper bound."""
        return self.max_mean_score is not None and mean_score >= self.max_mean_score


def count_remaining(scores: Sequence[float | None], samples: int, bounds: Bounds) -> int:
    """Return the minimum number of further rollouts that could decide whether a prompt is kept, or 0 if decided.

    It is also 0 if all rollouts have been sampled. The decision is the one after `samples` rollouts. If `s` is the sum
    of `n` scores in [0, 1] and `r` rollouts remain, the mean of all rollouts will be in

        [s / (n + r), (s + r) / (n + r)].

    It is decided when both ends are kept, or both are dropped on the same side. A rollout that cannot be scored (None)
    only narrows this interval. The mean of the rollouts so far, which is compared with the bounds in the end, is also
    in the interval, so it gives the same decision.

    Args:
        scores: scores of the rollouts so far, with None for a rollout that could not be scored.
        samples: maximum number of rollouts of a prompt.
        bounds: the mean scores that are kept.
    """
    left = samples - len(scores)
    judged = [score for score in scores if score is not None]
    if left <= 0 or _is_decided(sum(judged), len(judged), left, bounds):
        return 0
    for drawn in range(1, left):
        best, worst = sum(judged) + drawn, sum(judged)
        if any(_is_decided(total, len(judged) + drawn, left - drawn, bounds) for total in (best, worst)):
            return drawn
    return left


def _is_decided(total: float, judged: int, left: int, bounds: Bounds) -> bool:
    if not judged:
        return False
    low, high = total / (judged + left), (total + left) / (judged + left)
    too_easy = bounds.is_too_easy(low)
    too_hard = bounds.min_mean_score is not None and high <= bounds.min_mean_score
    return too_easy or too_hard or (bounds.keep(low) and bounds.keep(high))
