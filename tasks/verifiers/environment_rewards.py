"""Verifier `environment`: the prompt's environment returns the reward, and nothing is verified here.

The ground truth is null.
"""

from __future__ import annotations

from typing import Any

from tasks.verifiers.scores import GroundTruthError

NO_REWARD = (
    "its environment returned no reward, and the prompt has no verifier (after a limit of the episode an environment "
    "that catches EpisodeOver can return one)"
)
"""Error of an episode whose environment returned no reward or exceeded a limit, while the prompt has no verifier."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` if there is a ground truth, because no verifier would read it."""
    if ground_truth is not None:
        raise GroundTruthError(f"want null, got {ground_truth!r:.200}")


def missing_resources(ground_truth: Any) -> list[str]:
    """Return an empty list: nothing is needed."""
    return []
