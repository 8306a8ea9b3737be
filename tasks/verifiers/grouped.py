"""Scores whole groups: a function scores all responses to a prompt in one call, in addition to other rewards.

    a response ─────► `alone`: its other rewards, as soon as it exists ──┐
    all responses ──► `together`: one call of each function of a group ──┴──► `combined`: a score for each response

The function gets every response of the group, whatever its other rewards are, even if one of them failed. Therefore its
result depends only on the responses: it is the same in every stage, after a resume, and on an attempt that scores a
failed response again. A failure of the function is a failure of every response of the group.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.verifiers.calls import Response
from tasks.verifiers.scores import CannotJudge, Reward, Score
from tasks.verifiers.weighted import PARTIAL, WEIGHTED, RewardTerm, list_terms

Scorer = Callable[[str, Response, Any], Awaitable[Score]]
"""A function that scores, given a verifier, a response to a prompt that it knows, and a ground truth."""


def has_group_reward(verifier: str, ground_truth: Any) -> bool:
    """Return whether a reward of a prompt scores all of its responses in one call."""
    try:
        return any(term.of_group for term in list_terms(verifier, ground_truth))
    except CannotJudge:  # a malformed ground truth is an error of each response
        return False


@dataclass(frozen=True)
class GroupRewards:
    """The rewards of a prompt, at least one of which scores all responses in one call."""

    terms: tuple[RewardTerm, ...]

    @classmethod
    def from_ground_truth(cls, verifier: str, ground_truth: Any) -> GroupRewards:
        """Return the rewards of a prompt for which `has_group_reward` is true."""
        return cls(tuple(list_terms(verifier, ground_truth)))

    @property
    def alone(self) -> Any:
        """Ground truth of `weighted` for the rewards that score each response separately, or None without any."""
        terms = [
            {"verifier": term.verifier, "weight": term.weight, "ground_truth": term.ground_truth}
            for term in self.terms
            if not term.of_group
        ]
        return {"rewards": terms, PARTIAL: True} if terms else None

    @property
    def together(self) -> list[Any]:
        """Ground truths of the functions that score the group."""
        return [term.ground_truth for term in self.terms if term.of_group]

    async def score_alone(self, score: Scorer, response: str) -> Score | None:
        """Score one response by `alone`, or return None if there is no such reward."""
        return None if self.alone is None else await score(WEIGHTED, response, self.alone)

    async def score_together(self, score: Scorer, responses: list[str]) -> list[Score]:
        """Call each function of the group, and return one score per call, which contains a reward for each response."""
        calls = (score("function", responses, ground_truth) for ground_truth in self.together)
        return list(await asyncio.gather(*calls))

    def combined(self, index: int, alone: Score | None, together: Sequence[Score]) -> Score:
        """Return the score of a response of the group. It passes if its first reward does.

        Args:
            index: index of the response in the group.
            alone: result of `score_alone` for it.
            together: result of `score_together`.
        """
        scores = [*([] if alone is None else [alone]), *together]
        slow = max((score.slow for score in scores if score.slow), key=lambda call: call.seconds, default=None)
        failed = next((score for score in scores if score.error is not None), None)
        if failed is not None:
            return replace(failed, slow=slow)
        single, grouped = iter(() if alone is None else alone.rewards), iter(together)
        rewards = [
            Reward(term.name, term.weight, next(grouped).rewards[index].value) if term.of_group else next(single)
            for term in self.terms
        ]
        named = zip(self.terms, rewards, strict=True)
        details = [f"{term.name}: {reward.value}" for term, reward in named if term.of_group]
        rewards += single  # recorded rewards of weight 0
        first = rewards[0].value or 0.0
        passed = first >= 1 if self.terms[0].of_group else alone is not None and alone.passed
        detail = "; ".join([*([] if alone is None else [alone.detail]), *details])
        return Score.from_rewards(rewards, passed, detail, any(score.timed_out for score in scores), slow)


async def score_group(score: Scorer, verifier: str, responses: list[str], ground_truth: Any) -> list[Score]:
    """Score all responses to a prompt for which `has_group_reward` is true. The scores have the same order."""
    rewards = GroupRewards.from_ground_truth(verifier, ground_truth)
    together, alone = await asyncio.gather(
        rewards.score_together(score, responses),
        asyncio.gather(*(rewards.score_alone(score, response) for response in responses)),
    )
    return [rewards.combined(index, own, together) for index, own in enumerate(alone)]
