"""Losses and advantage functions as a user writes them, for the tests of `objective.surrogate` and `advantage`."""

import torch


def ppo(row, clip_low=0.2, clip_high=0.28):
    """The built-in surrogate `ppo`, and two metrics of it."""
    ratio = (row.logprobs - row.old_logprobs).clamp(-20, 20).exp()
    bounded = ratio.clamp(1 - clip_low, 1 + clip_high)
    terms = torch.minimum(ratio * row.advantages, bounded * row.advantages)
    return terms, {"outside": ratio != bounded, "ratio": ratio}


def group_mean(batch):
    """The built-in estimator `group_mean`."""
    count = batch.present.sum(dim=1, keepdim=True)
    centred = batch.rewards - batch.rewards.sum(dim=1, keepdim=True) / count
    return centred.masked_fill(~batch.present, 0.0)


def rising(batch, start=0.0):
    """An advantage for each token: that of `group_mean`, times `start`, then 1 more for each token."""
    positions = torch.arange(batch.sampled.shape[2]) + start
    return group_mean(batch)[:, :, None] * positions * batch.sampled


def averages(row):
    """What no loss may do."""
    return (row.logprobs * row.advantages).mean()
