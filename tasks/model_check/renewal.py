"""Detects that an engine still uses old values of some weights, even if their effect is smaller than rounding:
over many tokens, the engine's errors then correlate with the effect that these old values would have.

Let e be the engine's errors, one per token, and d_G the change of the exact log-probabilities if the tensors of group G
get their old values back. If the engine uses old values of G, then e = d_G + rounding, so e and d_G correlate over many
tokens. If it uses new values, e is only rounding, which does not correlate with d_G.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from tasks.training.learner.packing import Floats

SIGMAS = 6.0
"""Smallest correlation that counts, in standard deviations under independence, 1 / sqrt(n)."""


def compute_correlation(errors: Floats, changes: Floats) -> float:
    """Return Spearman's rank correlation, which outliers do not dominate.

    It is 0 if there are fewer than two values, or if all errors or all changes are equal.
    """
    from scipy.stats import spearmanr

    if len(errors) < 2 or np.ptp(errors) == 0 or np.ptp(changes) == 0:
        return 0.0
    return float(spearmanr(errors, changes).statistic)


def compute_least_correlation(tokens: int) -> float:
    """Return the smallest correlation over this number of tokens that counts; it is above 1 below 36 tokens."""
    return SIGMAS / math.sqrt(tokens) if tokens else math.inf


def find_old_group(errors: Floats, changes: Mapping[str, Floats]) -> str | None:
    """Return the group of tensors whose old values an engine most likely uses, or None.

    Args:
        errors: float32 `[n]`, log-probabilities of the engine minus the exact ones, nats.
        changes: float32 `[n]` by group, exact log-probabilities with its old values minus the exact ones, nats.
    """
    correlations = {group: compute_correlation(errors, values) for group, values in changes.items()}
    group = max(correlations, key=lambda name: correlations[name], default=None)
    return group if group is not None and correlations[group] > compute_least_correlation(len(errors)) else None
