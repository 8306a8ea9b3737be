"""Defines how a recipe names a user's loss or advantage function, and what these functions get.

This module does not import torch: recipes are also parsed on machines without torch. The functions are loaded by
`tasks.objective.own_functions`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from pydantic import field_validator

from tasks.config.fields import Arguments, UserCode
from tasks.config.loading import Config

if TYPE_CHECKING:
    from torch import Tensor


class OwnFunction(Config):
    """A function of your own, instead of a built-in name."""

    function: UserCode[str]
    """Import path of the function, such as `my_objective.loss`, in the folder of this file, the working directory or on
    the Python path."""
    options: Arguments = {}  # noqa: RUF012 (pydantic copies defaults)
    """Keyword arguments of the function, in addition to what it is called with."""
    fingerprint: str | None = None
    """Digest of the function's file and the files of yours that it imports. It is set before a run, so that changed
    code misses the cache."""

    @field_validator("function")
    @classmethod
    def _is_a_path(cls, function: str) -> str:
        parts = function.split(".")
        if len(parts) < 2 or not all(part.isidentifier() for part in parts):
            raise ValueError("must be an import path such as my_objective.loss")
        return function


class OwnSurrogate(OwnFunction):
    """A loss of your own: the term of each token, which is maximised.

    It is called as `function(row, **options)` with one `SurrogateRow`, and returns the terms, or the terms and metrics.
    Correction, aggregation, KL penalty and entropy bonus are applied to its terms as to a built-in surrogate's.
    """


class OwnAdvantage(OwnFunction):
    """An estimator of advantages of your own.

    It is called as `function(batch, **options)` with one `RewardBatch` for each batch, and returns the advantages. They
    are used as they are: nothing normalises them afterwards.
    """

    keep_equal_rewards: bool = False
    """If true, groups whose rewards are all equal count as groups with a gradient: `resampling` does not replace them,
    and the function gets them. If false, they are replaced, as `resampling` says, before the function is called."""


@dataclass(frozen=True)
class SurrogateRow:
    """One micro-batch as a loss function gets it. Every tensor is `[1, T]`, at least float32, 0 outside the mask.

    A row contains the responses of several sequences one after the other, without prompts and without padding.
    """

    logprobs: Tensor
    """Log-probability of each token under the policy that is being trained, nats; the gradient flows through it."""
    old_logprobs: Tensor
    """The same under the learner's policy before the first update on the batch."""
    rollout_logprobs: Tensor
    """The same as the engine reported it while sampling."""
    advantages: Tensor
    """Advantage of each token."""
    mask: Tensor
    """bool; True for trained tokens."""
    sequence_ids: Tensor
    """int64; the tokens of one sequence have the same number, -1 is none. How sequences share rows is arbitrary."""


@dataclass(frozen=True)
class RewardBatch:
    """One batch as an advantage function gets it, `[groups, samples]`; groups may have fewer samples than the largest.

    Rewards are after `shaping` (`signed`, `stop_properly`, `overlong`) and, with `kl.in_reward`, after the penalty.
    """

    rewards: Tensor
    """float64; the reward of each response, 0 if it is not present."""
    lengths: Tensor
    """int64; number of tokens of each response. For an episode, they include tokens that its environment inserted."""
    sampled: Tensor
    """bool `[groups, samples, longest]`; True for tokens that the policy sampled, False for inserted tokens and behind
    the end of a response."""
    present: Tensor
    """bool; True for the samples that exist. What the function returns for others is not used."""
    metadata: list[list[dict[str, Any]]]
    """For each response of each group: `prompt_id`, `source`, `domain`, `metadata` (of the prompt), `passed`,
    `truncated`, and `rewards`, the unshaped rewards by name."""


Terms: TypeAlias = "tuple[Tensor, Mapping[str, Tensor]]"
"""The terms of a row, and values of each token by name, all `[1, T]`. Their means over the trained tokens become
metrics."""
RowTerms: TypeAlias = Callable[[SurrogateRow], "Terms"]
"""A user's loss, with its options filled in and its result checked."""
