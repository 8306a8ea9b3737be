"""Computes advantages, loss and metrics from rewards and log-probabilities.

All functions are pure functions of tensors and an `ObjectiveConfig`. Modules that need torch are imported on first use,
so that other parts of the package are also imported on machines without torch.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from tasks.objective.shaping import compute_shaped_reward

if TYPE_CHECKING:
    from tasks.objective.advantages import compute_advantages, find_zero_variance, normalize_then_sum
    from tasks.objective.kl import estimate_response_kl
    from tasks.objective.loss import LossInputs, LossOutput, policy_loss
    from tasks.objective.metrics import summarize

__all__ = [
    "LossInputs",
    "LossOutput",
    "compute_advantages",
    "compute_shaped_reward",
    "estimate_response_kl",
    "find_zero_variance",
    "normalize_then_sum",
    "policy_loss",
    "summarize",
]

_MODULES = {
    "LossInputs": "loss",
    "LossOutput": "loss",
    "compute_advantages": "advantages",
    "estimate_response_kl": "kl",
    "normalize_then_sum": "advantages",
    "policy_loss": "loss",
    "summarize": "metrics",
    "find_zero_variance": "advantages",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
