"""Shapes a verifier's reward before advantages are computed within its group. Does not import torch."""

from __future__ import annotations

from tasks.recipe.objective import OverlongConfig, ShapingConfig


def compute_shaped_reward(reward: float, length: int, truncated: bool, config: ShapingConfig) -> float:
    """Return the reward that training maximises, computed from the verifier's reward.

    With r the verifier's reward, in this order:

    - `signed`: `2 r - 1`, so that 0 and 1 become -1 and 1 (DAPO, eq. 7);
    - `stop_properly` c: `c r` for a truncated response (ProRLv2's "stop properly" penalty, after DLER);
    - `overlong`: `r + weight * overlong_penalty(length)` (DAPO, section 3.4).

    Args:
        reward: the verifier's reward of one response.
        length: number of the response's tokens.
        truncated: whether it was cut at `sampling.max_tokens`.
        config: the changes to make.
    """
    if config.signed:
        reward = 2 * reward - 1
    if config.stop_properly is not None and truncated:
        reward *= config.stop_properly
    if config.overlong is not None:
        reward += config.overlong.weight * compute_overlong_penalty(length, config.overlong)
    return reward


def compute_overlong_penalty(length: int, config: OverlongConfig) -> float:
    """Return DAPO's soft overlong punishment (eq. 13), with `L_max` = `max_length` and `L_cache` = `cache`.

    0 up to `L_max - L_cache` tokens, `((L_max - L_cache) - length) / L_cache` up to `L_max`, -1 beyond.
    """
    free = config.max_length - config.cache
    return max(-1.0, min(0.0, (free - length) / config.cache))
