"""Computes the advantages of a batch by the function of the user's that `objective.advantage` names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from tasks.generation.interface import Completion
from tasks.recipe.objective import ObjectiveConfig
from tasks.recipe.own import OwnAdvantage, RewardBatch
from tasks.recipe.run import TrainingConfig
from tasks.training.control.batch import Advantage, Advantages, advantages, collect_rewards, pad_rows
from tasks.training.groups.group import JudgedGroup, JudgedSample

if TYPE_CHECKING:
    from torch import Tensor


def resolve_advantages(objective: ObjectiveConfig) -> Advantages:
    """Return the function that computes the advantages of the batches of a run; a user's function is loaded here.

    Raises:
        OwnFunctionError: it cannot be loaded; or later, when it is called, it fails or returns something else.
    """
    from tasks.objective.own_functions import OwnEstimator

    if not isinstance(objective.advantage, OwnAdvantage):
        return advantages
    estimator = OwnEstimator(objective.advantage)

    def compute(batch: Sequence[JudgedGroup], penalties: list[float], _config: TrainingConfig) -> list[list[Advantage]]:
        values = estimator(make_reward_batch(batch, penalties))
        return [
            [_make_advantage(row[s], completion) for s, completion in enumerate(group.completions)]
            for group, row in zip(batch, values, strict=True)
        ]

    return compute


def _make_advantage(values: Tensor, completion: Completion) -> Advantage:
    """Return the advantage of a response, or of each of its tokens if there are `values` for tokens."""
    if values.ndim == 0:
        return float(values)
    by_token: Advantage = values[: len(completion.token_ids)].float().numpy()
    return by_token


def make_reward_batch(batch: Sequence[JudgedGroup], penalties: list[float]) -> RewardBatch:
    """Return what the user's function gets for a batch.

    `penalties` contains one number for every response of the batch, which is subtracted from its reward.
    """
    import torch

    rewards, present = collect_rewards(batch, penalties)
    lengths = pad_rows([[len(c.token_ids) for c in group.completions] for group in batch], torch.long)
    sampled = torch.zeros(*lengths.shape, int(lengths.max()), dtype=torch.bool)
    for g, group in enumerate(batch):
        for s, completion in enumerate(group.completions):
            for start, end in _find_sampled(completion):
                sampled[g, s, start:end] = True
    metadata = [[_make_metadata(group, sample) for sample in group.samples] for group in batch]
    return RewardBatch(rewards, lengths, sampled, present, metadata)


def _find_sampled(completion: Completion) -> list[tuple[int, int]]:
    """Return the tokens [start, end) of a response that the policy sampled."""
    if not completion.is_episode:
        return [(0, len(completion.token_ids))]
    return [(turn.start, turn.end) for turn in completion.turns]


def _make_metadata(group: JudgedGroup, sample: JudgedSample) -> dict[str, Any]:
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
