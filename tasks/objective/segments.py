"""Computes sums and means over the sequences of a padded or packed batch.

A padded batch contains one sequence per row. A packed batch contains several, identified by `sequence_ids`; the same id
in another row is another sequence.
"""

from __future__ import annotations

import torch
from torch import Tensor


def sum_per_sequence(values: Tensor, sequence_ids: Tensor | None) -> Tensor:
    """Sum `values` over each position's sequence, and write the sum to each of its positions.

    Args:
        values: `[batch, seq]`.
        sequence_ids: `[batch, seq]`, -1 on padding. Optional. If None, each row is one sequence.

    Returns:
        `[batch, seq]`. All padding of a row counts as one sequence.
    """
    if sequence_ids is None:
        return values.sum(dim=1, keepdim=True).expand_as(values)
    ids = sequence_ids - sequence_ids.amin()
    rows = torch.arange(len(ids), device=ids.device)[:, None]
    flat = (rows * (ids.amax() + 1) + ids).flatten()  # [batch * seq]
    totals = torch.zeros(int(flat.amax()) + 1, dtype=values.dtype, device=values.device)
    return totals.index_add(0, flat, values.flatten())[flat].view_as(values)


def mean_per_sequence(values: Tensor, mask: Tensor, sequence_ids: Tensor | None) -> Tensor:
    """Average `values` over the trained tokens of each position's sequence, and write the mean to its positions.

    The mean of log-ratios is the logarithm of the ratios' geometric mean. A sequence without trained tokens gets 0.

    Args:
        values: `[batch, seq]`.
        mask: bool `[batch, seq]`.
        sequence_ids: `[batch, seq]`, -1 on padding. Optional. If None, each row is one sequence.

    Returns:
        `[batch, seq]`.
    """
    total = sum_per_sequence(values.masked_fill(~mask, 0.0), sequence_ids)
    return total / sum_per_sequence(mask.to(values.dtype), sequence_ids).clamp(min=1)
