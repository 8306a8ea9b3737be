"""`environment`: the reward is the one that the prompt's environment returns, and there is nothing to judge.

The ground truth is null.
"""

from __future__ import annotations

from typing import Any

from tasks.verifiers.scores import GroundTruthError

NO_REWARD = "its environment returned no reward, and the prompt has no verifier"
"""Why an episode is not judged whose environment left that to the verifier, or overran a limit."""


def check_ground_truth(ground_truth: Any) -> None:
    """Raise `GroundTruthError` where there is a ground truth: no verifier would read it."""
    if ground_truth is not None:
        raise GroundTruthError(f"want null, got {ground_truth!r:.200}")


def missing_resources(ground_truth: Any) -> list[str]:
    """Return an empty list: nothing is needed."""
    return []
