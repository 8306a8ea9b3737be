"""Trains on one batch of groups: builds sequences, computes advantages and KL penalty, and takes optimizer steps."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np

from tasks.generation.interface import Completion, Piece
from tasks.recipe.objective import ObjectiveConfig
from tasks.recipe.run import TrainingConfig
from tasks.training.groups.group import JudgedGroup
from tasks.training.learner.client import StepReport
from tasks.training.learner.packing import Floats
from tasks.training.learner.packing import Sequence as TokenSequence
from tasks.training.learner.restartable import NotFiniteError, RestartingLearner
from tasks.training.records.kept_tokens import TrainedTokens, is_kept


@dataclass(frozen=True)
class TrainedBatch:
    """Result of training on a batch.

    Attributes:
        metrics: the learner's metrics, averaged over the optimizer steps.
        spreads: for each group, the standard deviation of its advantages (`compute_spread`).
        tokens: the tokens of the responses of groups that are kept (`keep_tokens`), by group number. A group that is
            trained on again is left out: its responses were written after its first step.
    """

    metrics: dict[str, float]
    spreads: list[float]
    tokens: dict[int, list[TrainedTokens]]


Advantage: TypeAlias = float | Floats
"""The advantage of a response, or `[n]`, the advantage of each of its tokens, inserted ones included."""
Advantages = Callable[[Sequence[JudgedGroup], list[float], TrainingConfig], Sequence[Sequence[Advantage]]]
"""A function that takes a batch, a penalty for each response and the options, and returns advantages (`advantages`)."""


Sample = list[TokenSequence]
"""The sequences of one response, one for each of its `pieces`. There are several only if the conversation was
restarted."""


async def train_batch(
    batch: Sequence[JudgedGroup],
    version: int,
    rate: float,
    learner: RestartingLearner,
    config: TrainingConfig,
    compute: Advantages,
) -> TrainedBatch:
    """Take all optimizer steps on `batch`, starting from policy `version`, at learning rate `rate`.

    One step is taken on every minibatch in every epoch. A group is never split over minibatches. A step whose loss or
    gradient is not finite is skipped and counted (`updates_left_out`).

    `compute` returns the advantages.

    Raises:
        NotFiniteError: all steps were skipped.
    """
    kl = config.objective.kl
    sequences = _add_numbers(responses(batch, version, config), batch, config)
    sequences = await _add_old_logprobs(sequences, learner, config)
    distances = await _compute_distances(sequences, learner, config) if kl.in_reward else [0.0] * len(sequences)
    pieces = [len(completion.pieces) for group in batch for completion in group.completions]
    rows = compute(batch, [kl.beta * distance for distance in _compute_sums(distances, pieces)], config)
    groups = _add_advantages(batch, sequences, rows)
    size, updates = len(groups) // config.updates.minibatches, config.updates.minibatches * config.updates.epochs
    reports: list[StepReport] = []
    logprobs: dict[int, Floats] = {}  # before the first update, of all kept sequences that were in a loss
    skipped: NotFiniteError | None = None
    for start in [*range(0, len(groups), size)] * config.updates.epochs:
        part = groups[start : start + size]
        denominator = config.objective.denominator(_count_trained(sample) for group in part for sample in group)
        trained = select_with_gradient(part, config.objective)
        try:
            report = await learner.step(trained, denominator, rate)
        except NotFiniteError as error:
            skipped = error
            continue
        reports.append(report)
        known = {s.kept_as: s.old_logprobs for s in trained if s.kept_as is not None and s.old_logprobs is not None}
        logprobs |= {number: np.asarray(values, np.float32) for number, values in known.items()} | report.logprobs
    if skipped and not reports:
        raise skipped
    counts = {"updates_left_out": float(updates - len(reports))} if updates > 1 else {}
    metrics = {**StepReport.merge(reports).metrics, **counts, "learning_rate": rate}
    if kl.in_reward:
        metrics["kl"] = sum(distances) / max(sum(sequence.num_trained for sequence in sequences), 1)
    return TrainedBatch(metrics, [compute_spread(row) for row in rows], _collect_tokens(batch, groups, logprobs))


def compute_spread(advantages: Sequence[Advantage]) -> float:
    """Return the standard deviation of the advantages of a group: of its responses, or of all their tokens."""
    by_token = [values for values in advantages if isinstance(values, np.ndarray)]
    if not by_token:
        return statistics.pstdev(map(float, advantages))
    return float(np.concatenate(by_token, dtype=np.float64).std()) if any(map(len, by_token)) else 0.0


def _add_numbers(
    sequences: list[TokenSequence], batch: Sequence[JudgedGroup], config: TrainingConfig
) -> list[TokenSequence]:
    """Return what `responses` returned, with a number for each sequence whose tokens are kept."""
    chosen = [
        config.keep_tokens > 0 and not group.replays and is_kept(group.number, config.keep_tokens)
        for group in batch
        for completion in group.completions
        for _ in completion.pieces
    ]
    numbers = itertools.count()
    return [
        replace(sequence, kept_as=next(numbers)) if is_one else sequence
        for sequence, is_one in zip(sequences, chosen, strict=True)
    ]


def _collect_tokens(
    batch: Sequence[JudgedGroup], groups: list[list[Sample]], trained: dict[int, Floats]
) -> dict[int, list[TrainedTokens]]:
    """Return the tokens of the kept groups by group number.

    Args:
        batch: the groups.
        groups: their samples.
        trained: log-probabilities of the sequences that were in the loss, by number.
    """
    return {
        group.number: [_collect_trained_tokens(sample, trained) for sample in samples]
        for group, samples in zip(batch, groups, strict=True)
        if samples[0][0].kept_as is not None
    }


def _collect_trained_tokens(sample: Sample, trained: dict[int, Floats]) -> TrainedTokens:
    logprobs, masks = [], []
    for sequence in sample:
        assert sequence.kept_as is not None
        length = len(sequence.response_ids)
        mask = np.ones(length, np.bool_) if sequence.mask is None else np.array(sequence.mask, np.bool_)
        values = trained.get(sequence.kept_as)  # None for a group without a gradient, which is not in the loss
        masks.append(mask & (values is not None))
        logprobs.append(np.zeros(length, np.float32) if values is None else np.where(mask, values, np.float32(0)))
    by_token = [sequence.advantage for sequence in sample if isinstance(sequence.advantage, np.ndarray)]
    return TrainedTokens(
        np.concatenate(logprobs).astype(np.float32, copy=False),
        np.concatenate(masks),
        np.concatenate(by_token) if by_token else sample[0].advantage,
    )


async def _add_old_logprobs(
    sequences: list[TokenSequence], learner: RestartingLearner, config: TrainingConfig
) -> list[TokenSequence]:
    """Return the sequences with the learner's log-probabilities before the first update if a later update or a KL
    penalty in the reward needs them, otherwise unchanged.
    """
    updates = config.updates
    if updates.minibatches * updates.epochs == 1 and not config.objective.kl.in_reward:
        return sequences
    old = await learner.logprobs(sequences)
    return [replace(sequence, old_logprobs=values) for sequence, values in zip(sequences, old, strict=True)]


async def _compute_distances(
    sequences: list[TokenSequence], learner: RestartingLearner, config: TrainingConfig
) -> list[float]:
    """Return the KL divergence of every sequence from the reference policy, in nats."""
    from tasks.objective.kl import estimate_response_kl

    old = [sequence.old_logprobs for sequence in sequences if sequence.old_logprobs is not None]
    reference = await learner.reference_logprobs(sequences)
    distances: list[float] = estimate_response_kl(old, reference, config.objective.kl).tolist()
    return distances


def _compute_sums(values: Sequence[float], counts: Sequence[int]) -> list[float]:
    """Return the sums of consecutive runs of `values`; `counts` are the lengths of the runs."""
    remaining = iter(values)
    return [sum(next(remaining) for _ in range(count)) for count in counts]


def _add_advantages(
    batch: Sequence[JudgedGroup], sequences: list[TokenSequence], advantages: Sequence[Sequence[Advantage]]
) -> list[list[Sample]]:
    """Return the samples of the groups with their advantages.

    All pieces of a sample share its advantage, or have the advantages of their tokens.

    `sequences` is what `responses` returned.
    """
    remaining = iter(sequences)
    return [
        [
            [replace(next(remaining), advantage=_select_piece(advantage, piece)) for piece in completion.pieces]
            for completion, advantage in zip(group.completions, row, strict=True)
        ]
        for group, row in zip(batch, advantages, strict=True)
    ]


def _select_piece(advantage: Advantage, piece: Piece) -> Advantage:
    return advantage[piece.start : piece.end] if isinstance(advantage, np.ndarray) else advantage


def _count_trained(sample: Sample) -> int:
    return sum(piece.num_trained for piece in sample)


def select_with_gradient(groups: list[list[Sample]], objective: ObjectiveConfig) -> list[TokenSequence]:
    """Return all sequences of each group that has an advantage other than 0, or of all groups if the objective also
    trains without advantages.

    A group with zero advantages needs neither a forward nor a backward pass, unless there is a penalty or a bonus on
    every token. It still counts in the denominator. At least one sequence is returned, so that a step is taken that
    decays weights and moments.
    """
    by_group = [[piece for sample in group for piece in sample] for group in groups]
    everything = [piece for group in by_group for piece in group]
    if objective.trains_without_advantage:
        return everything
    moving = [piece for group in by_group if any(np.any(piece.advantage) for piece in group) for piece in group]
    return moving or [min(everything, key=lambda piece: piece.length)]


def responses(batch: Sequence[JudgedGroup], version: int, config: TrainingConfig) -> list[TokenSequence]:
    """Return the sequences of all responses of a batch, group by group, with loss masks for a step that starts from
    policy `version`. Their advantages are 0 until `_add_advantages` sets them.

    An episode whose conversation was restarted gives one sequence for each of its pieces. They share its advantage.
    """
    return [
        sequence
        for group in batch
        for completion in group.completions
        for sequence in _make_sequences(completion, group.prompt.token_ids, _make_mask(completion, version, config))
    ]


def _make_sequences(completion: Completion, prompt_ids: list[int], mask: list[bool] | None) -> list[TokenSequence]:
    num_trained = len(completion.token_ids) if mask is None else sum(mask)
    return [
        TokenSequence(
            prompt_ids if piece.context is None else piece.context.tolist(),
            completion.token_ids[piece.start : piece.end],
            completion.logprobs[piece.start : piece.end],
            advantage=0.0,
            mask=None if mask is None else mask[piece.start : piece.end],
            sample_tokens=num_trained if len(completion.pieces) > 1 else None,
            routes=completion.routes,  # no episode has any
        )
        for piece in completion.pieces
    ]


def _make_mask(completion: Completion, version: int, config: TrainingConfig) -> list[bool] | None:
    """Return a loss mask over the tokens of a response, or None to train on all of them.

    Tokens that an environment inserted are never trained on.
    """
    if config.objective.shaping.filter_truncated and completion.truncated:
        return [False] * len(completion.token_ids)
    too_old = [span for span in completion.versions if version - span.version > config.max_staleness]
    if not too_old and not completion.turns:
        return None
    mask = [not completion.turns] * len(completion.token_ids)
    for turn in completion.turns:
        mask[turn.start : turn.end] = [True] * (turn.end - turn.start)
    for span in too_old:
        mask[span.start : span.end] = [False] * (span.end - span.start)
    return mask


def advantages(batch: Sequence[JudgedGroup], penalties: list[float], config: TrainingConfig) -> list[list[Advantage]]:
    """Return for each group the advantages of its responses, in their order, by a built-in estimator.

    `penalties` contains one number for every response of the batch, which is subtracted from its reward.
    """
    import torch

    from tasks.objective.advantages import compute_advantages, normalize_then_sum

    rewards, present = collect_rewards(batch, penalties)
    if config.objective.reward_aggregation == "normalize_then_sum":
        values = normalize_then_sum(*_collect_components(batch), present)
    else:
        num_tokens = pad_rows([[c.num_tokens for c in group.completions] for group in batch], torch.long)
        values = compute_advantages(rewards, num_tokens, config.objective, present)
    return [row[mask].tolist() for row, mask in zip(values, present, strict=True)]


def collect_rewards(batch: Sequence[JudgedGroup], penalties: list[float]) -> tuple[Any, Any]:
    """Return the rewards of a batch less the penalties, and which samples exist, both `[groups, samples]`."""
    import torch

    present = pad_rows([[True] * len(group.completions) for group in batch], torch.bool)
    rewards = pad_rows([group.scores for group in batch], torch.float64)
    rewards[present] -= torch.tensor(penalties, dtype=torch.float64)
    return rewards, present


def pad_rows(rows: Sequence[list[Any]], dtype: Any) -> Any:
    """Return rows of different lengths as a tensor `[rows, longest]`, padded with 0."""
    import torch

    return torch.nn.utils.rnn.pad_sequence([torch.tensor(row, dtype=dtype) for row in rows], batch_first=True)


def _collect_components(batch: Sequence[JudgedGroup]) -> tuple[Any, Any]:
    """Return rewards `[groups, samples, rewards]`, NaN for a missing one, and their weights `[groups, rewards]`."""
    import torch

    # Prompts differ in the number of their rewards, and in the rewards themselves.
    components = [[sample.components for sample in group.samples] for group in batch]
    samples = max(len(group) for group in components)
    most = max(len(rewards) for group in components for rewards in group)
    values = torch.full((len(batch), samples, most), torch.nan, dtype=torch.float64)
    weights = torch.zeros(len(batch), most, dtype=torch.float64)
    for g, group in enumerate(components):
        for s, rewards in enumerate(group):
            for k, part in enumerate(rewards):
                weights[g, k] = part.weight
                if part.value is not None:
                    values[g, s, k] = part.value
    return values, weights
