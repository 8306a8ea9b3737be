"""Computes the advantages of a batch by the function of the user's that `objective.advantage` names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.generation.interface import Completion
from tasks.training.control.batch import Advantage, Advantages, advantages, padded, rewards_of
from tasks.training.groups.group import JudgedGroup, JudgedSample
from tasks.training.options.objective import ObjectiveConfig
from tasks.training.options.own import OwnAdvantage, RewardBatch
from tasks.training.options.run import TrainingConfig

if TYPE_CHECKING:
    from torch import Tensor


def advantages_of(objective: ObjectiveConfig) -> Advantages:
    """Return the function that computes the advantages of the batches of a run; a user's function is loaded here.

    Raises:
        OwnFunctionError: it cannot be loaded; or later, when it is called, it fails or returns something else.
    """
    from tasks.training.objective.own_functions import OwnEstimator

    if not isinstance(objective.advantage, OwnAdvantage):
        return advantages
    estimator = OwnEstimator(objective.advantage)

    def compute(batch: Sequence[JudgedGroup], penalties: list[float], _config: TrainingConfig) -> list[list[Advantage]]:
        values = estimator(reward_batch(batch, penalties))
        return [
            [_advantage(row[s], completion) for s, completion in enumerate(group.completions)]
            for group, row in zip(batch, values, strict=True)
        ]

    return compute


def _advantage(values: Tensor, completion: Completion) -> Advantage:
    """Return the advantage of a response, or of each of its tokens if there are `values` for tokens."""
    if values.ndim == 0:
        return float(values)
    by_token: Advantage = values[: len(completion.token_ids)].float().numpy()
    return by_token


def reward_batch(batch: Sequence[JudgedGroup], penalties: list[float]) -> RewardBatch:
    """Return what the user's function gets for a batch.

    `penalties` contains one number for every response of the batch, which is subtracted from its reward.
    """
    import torch

    rewards, present = rewards_of(batch, penalties)
    lengths = padded([[len(c.token_ids) for c in group.completions] for group in batch], torch.long)
    sampled = torch.zeros(*lengths.shape, int(lengths.max()), dtype=torch.bool)
    for g, group in enumerate(batch):
        for s, completion in enumerate(group.completions):
            for start, end in _sampled(completion):
                sampled[g, s, start:end] = True
    metadata = [[_metadata(group, sample) for sample in group.samples] for group in batch]
    return RewardBatch(rewards, lengths, sampled, present, metadata)


def _sampled(completion: Completion) -> list[tuple[int, int]]:
    """Return the tokens [start, end) of a response that the policy sampled."""
    if not completion.is_episode:
        return [(0, len(completion.token_ids))]
    return [(turn.start, turn.end) for turn in completion.turns]


def _metadata(group: JudgedGroup, sample: JudgedSample) -> dict[str, Any]:
    prompt = group.prompt
    return {
        "prompt_id": prompt.prompt_id,
        "source": prompt.source,
        "domain": prompt.domain,
        "metadata": json.loads(prompt.metadata),
        "passed": sample.passed,
        "truncated": sample.completion.truncated,
        "rewards": {reward.name: reward.value for reward in sample.rewards},
    }
