"""Computes the smallest gain that an evaluation will detect, from assumptions about policies that do not exist yet."""

from __future__ import annotations

from tasks.statistics.intervals import plan_gain

RATE = 0.5
"""Pass rate of the policies. Gains near 0 or 1 are detected with fewer prompts."""
CORRELATION = 0.6
"""Correlation between two samples of a prompt: most prompts are rather easy or rather hard for a policy."""
SHARED = 0.9
"""Correlation of the prompts' pass rates between the initial and the trained policy."""


def estimate_detectable_gain(prompts: int, samples: int) -> float:
    """Return the smallest gain that `prompts` prompts with `samples` samples each detect, under these assumptions."""
    return plan_gain(prompts, samples, RATE, CORRELATION, SHARED)
