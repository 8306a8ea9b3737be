"""Finds weights that an engine goes on with in their old form, however small that makes its error.

An engine in 16 bits is off by rounding, and weights that it did not renew may move its log-probabilities by less. But
rounding has no direction. With e the engine's errors token by token, and d_G the change of the exact log-probabilities
where the tensors of a group G take their old values again, an engine that keeps old values of G has e = d_G + rounding.
Then e and d_G go together over many tokens, and otherwise they do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tasks.training.learner.packing import Floats

SIGMAS = 6.0
"""Rank correlation that is no chance, in standard deviations of that of unrelated values, 1 / sqrt(n)."""


def correlation(errors: Floats, changes: Floats) -> float:
    """Return Spearman's rank correlation, to which a token with a large error counts no more than others.

    0 where there are fewer than two values, or all of one side are equal.
    """
    from scipy.stats import spearmanr

    if len(errors) < 2 or np.ptp(errors) == 0 or np.ptp(changes) == 0:
        return 0.0
    return float(spearmanr(errors, changes).statistic)


def least_correlation(tokens: int) -> float:
    """Return the correlation over so many tokens above which a group counts as old."""
    return SIGMAS / math.sqrt(tokens) if tokens else math.inf


def old_group(errors: Floats, changes: Mapping[str, Floats]) -> str | None:
    """Return the group of tensors that an engine most likely has in old form; None: no group.

    Args:
        errors: float32 `[n]`, log-probabilities of the engine less the exact ones, nats.
        changes: float32 `[n]` for each group, exact ones with its old values less the exact ones, nats.
    """
    correlations = {group: correlation(errors, values) for group, values in changes.items()}
    group = max(correlations, key=lambda name: correlations[name], default=None)
    return group if group is not None and correlations[group] > least_correlation(len(errors)) else None
