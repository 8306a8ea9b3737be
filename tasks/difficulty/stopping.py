"""When a prompt needs no further rollout: its fate is the same whatever the others would score."""

from __future__ import annotations

from collections.abc import Sequence

from pydantic import Field

from tasks.config import Config


class Bounds(Config):
    """Which pass rates are kept."""

    max_pass_rate: float = Field(0.625, gt=0)
    """Kept are those strictly below this."""
    min_pass_rate: float | None = Field(None, ge=0, lt=1)
    """And strictly above this; None: all of them."""

    def __str__(self) -> str:
        below = f"below {self.max_pass_rate:.1%}"
        return below if self.min_pass_rate is None else f"above {self.min_pass_rate:.1%} and {below}"

    def keep(self, pass_rate: float) -> bool:
        """Whether a prompt of this pass rate stays."""
        return pass_rate < self.max_pass_rate and (self.min_pass_rate is None or pass_rate > self.min_pass_rate)


def remaining(scores: Sequence[float | None], samples: int, bounds: Bounds) -> int:
    """How many rollouts at least could decide about a prompt; 0 where that is decided, or all are there.

    The fate is that of `samples` rollouts: with `s` the sum of `n` scores in [0, 1] and `r` rollouts to come, the mean
    over all will lie in [s / (n + r), (s + r) / (n + r)], and is decided when both ends are kept, or both are dropped
    on the same side. A rollout that cannot be judged (None) narrows that interval and never widens it. So does the mean
    of the rollouts so far, which is what the prompt is then graded by: it has the same fate.

    Args:
        scores: of the rollouts so far.
        samples: rollouts at most.
        bounds: what is kept.
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
    too_easy = low >= bounds.max_pass_rate
    too_hard = bounds.min_pass_rate is not None and high <= bounds.min_pass_rate
    return too_easy or too_hard or (bounds.keep(low) and bounds.keep(high))
