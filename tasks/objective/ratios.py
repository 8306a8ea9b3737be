"""Computes probability ratios from differences of log-probabilities."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor

LOG_RATIO_BOUND = 20.0
"""Largest absolute log-ratio, nats, that is exponentiated: 5e8 exceeds all bounds in use, and is far from overflow."""


def bounded_exp(log_ratio: Tensor) -> Tensor:
    """Return `exp(log_ratio)`, constant (and so without gradient) beyond +-`LOG_RATIO_BOUND`; any shape."""
    return log_ratio.clamp(-LOG_RATIO_BOUND, LOG_RATIO_BOUND).exp()
