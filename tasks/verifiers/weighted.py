"""Verifier `weighted`: several rewards for one response, each scored by its own verifier, all at the same time.

A ground truth is `{"rewards": [{"verifier": "math", "weight": 1.0, "ground_truth": "7"}, ...]}`, with at least one
term. Weights are above 0, or below 0 for a penalty, and sum to more than 0. The first term is the prompt's main
verifier: it alone decides whether a response passes, so that a reward for a format never makes a wrong answer correct.

`tasks.verifiers.grouped` requests some of a prompt's rewards with `"partial": true`, which the ground truth of a prompt
never contains: these rewards are scored, and not combined.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tasks.verifiers.scores import VERIFIERS, GroundTruthError, Reward, Score, is_own

WEIGHTED = "weighted"
"""Name of this verifier."""
PARTIAL = "partial"
"""Key of a ground truth that contains only some of a prompt's rewards."""


@dataclass(frozen=True)
class RewardTerm:
    """One reward of a prompt: its verifier, its weight (any finite number but 0), and the verifier's ground truth."""

    verifier: str
    weight: float
    ground_truth: Any

    @property
    def name(self) -> str:
        """Name of the reward in metrics: the name of its function or reward model, or else of its verifier."""
        named = self.verifier in ("function", "reward_model") and isinstance(self.ground_truth, dict)
        return str(self.ground_truth.get(self.verifier, self.verifier)) if named else self.verifier

    @property
    def of_group(self) -> bool:
        """True for a function that scores all responses to a prompt in one call."""
        return self.verifier == "function" and isinstance(self.ground_truth, dict) and "group" in self.ground_truth


def list_terms(verifier: str, ground_truth: Any) -> list[RewardTerm]:
    """Return the rewards of a prompt: the terms of a weighted one, as `parse_terms` does, or the only one."""
    return parse_terms(ground_truth) if verifier == WEIGHTED else [RewardTerm(verifier, 1.0, ground_truth)]


def parse_terms(ground_truth: Any, *, partial: bool = False) -> list[RewardTerm]:
    """Return the terms of a ground truth; raises `GroundTruthError` if it is malformed.

    Args:
        ground_truth: the ground truth.
        partial: True if it contains only some of a prompt's rewards, whose weights may have any sum.
    """
    if not isinstance(ground_truth, dict) or set(ground_truth) != {"rewards", *([PARTIAL] if partial else [])}:
        raise GroundTruthError(f"expected an object with 'rewards' alone, got {ground_truth!r:.200}")
    terms = ground_truth["rewards"]
    if not isinstance(terms, list) or not terms:
        raise GroundTruthError("'rewards' must be a list of at least one")
    listed = [_parse_term(term) for term in terms]
    if not partial and math.fsum(term.weight for term in listed) <= 0:
        raise GroundTruthError("the weights of the rewards must sum to more than 0")
    return listed


def is_partial(ground_truth: Any) -> bool:
    """Return whether a ground truth of `weighted` contains only some of a prompt's rewards, which are not combined."""
    return isinstance(ground_truth, dict) and PARTIAL in ground_truth


def combine(terms: Sequence[RewardTerm], scores: Sequence[Score], *, partial: bool = False) -> Score:
    """Combine the scores of the terms into one, which passes if the first term does.

    An error of one term is an error of the whole.

    Args:
        terms: the rewards of the prompt.
        scores: the score of each term, in the same order.
        partial: True if the prompt has other rewards, too: the score then contains the rewards of the terms and no
            value.
    """
    slow = max((score.slow for score in scores if score.slow), key=lambda call: call.seconds, default=None)
    for term, score in zip(terms, scores, strict=True):
        if score.failure is not None:  # its message names the function
            return replace(score, slow=slow)
        if score.error is not None:
            return Score.from_error(f"{term.name}: {score.error}", timed_out=score.timed_out)
    rewards = [_make_reward(term, score) for term, score in zip(terms, scores, strict=True)]
    rewards += [recorded for score in scores for recorded in score.rewards[1:]]  # of weight 0, in no sum
    detail = "; ".join(f"{term.name}: {score.detail}" for term, score in zip(terms, scores, strict=True))
    passed, timed_out = scores[0].passed, any(score.timed_out for score in scores)
    if partial:
        return Score(0.0, passed, detail, rewards=tuple(rewards), timed_out=timed_out, slow=slow)
    return Score.from_rewards(rewards, passed, detail, timed_out, slow)


def _make_reward(term: RewardTerm, score: Score) -> Reward:
    if score.rewards:  # the first is the verifier's; from a function it may be outside [0, 1] or None
        return score.rewards[0]._replace(name=term.name, weight=term.weight)
    return Reward(term.name, term.weight, score.value)


def _parse_term(term: Any) -> RewardTerm:
    if not isinstance(term, dict) or set(term) != {"verifier", "weight", "ground_truth"}:
        raise GroundTruthError(f"a reward must have 'verifier', 'weight' and 'ground_truth', got {term!r:.200}")
    weight = term["weight"]
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not math.isfinite(weight) or weight == 0:
        raise GroundTruthError(f"the weight of a reward must be a finite number other than 0, got {weight!r}")
    known = term["verifier"] in VERIFIERS or is_own(term["verifier"])
    if not known or term["verifier"] == WEIGHTED:
        raise GroundTruthError(f"a reward cannot be scored by {term['verifier']!r}")
    return RewardTerm(term["verifier"], float(weight), term["ground_truth"])
