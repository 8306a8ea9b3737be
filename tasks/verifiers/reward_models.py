"""Verifier `reward_model`: the reward of a sequence classifier that `verifiers.reward_models` configures by name.

A ground truth is `{"reward_model": "helpful"}`. The models run in the pool's process
(`tasks.verifiers.chat.reward_model`).
"""

from __future__ import annotations

from typing import Any

from tasks.verifiers.scores import GroundTruthError


def parse_name(ground_truth: Any) -> str:
    """Return the name of the model; raises `GroundTruthError` if the ground truth names none."""
    named = ground_truth.get("reward_model") if isinstance(ground_truth, dict) and len(ground_truth) == 1 else None
    if not isinstance(named, str):
        raise GroundTruthError(f"expected an object with 'reward_model' alone, got {ground_truth!r:.200}")
    return named


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` if the ground truth names no model; does not check whether it is configured."""
    parse_name(ground_truth)


def missing_resources(ground_truth: Any) -> list[str]:
    """Return an empty list: missing resources are detected when the models are loaded."""
    return []
