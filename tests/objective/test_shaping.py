"""Reward shaping by hand, with DAPO's own numbers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.objective import compute_shaped_reward
from tasks.objective.shaping import compute_overlong_penalty
from tasks.recipe.objective import OverlongConfig, ShapingConfig

DAPO = OverlongConfig(max_length=20_480, cache=4_096)
"""Section 4.1: 16,384 tokens expected and 4,096 more as a cache, so 20,480 at most."""


@pytest.mark.parametrize(
    ("length", "penalty"),
    [(0, 0), (16_384, 0), (16_385, -1 / 4_096), (18_432, -0.5), (20_479, -4_095 / 4_096), (20_480, -1), (30_000, -1)],
)
def test_the_overlong_penalty_of_dapo(length, penalty):
    assert compute_overlong_penalty(length, DAPO) == pytest.approx(penalty, abs=1e-12)


@given(st.integers(0, 50_000), st.integers(0, 50_000))
def test_a_longer_response_is_never_penalised_less(one, other):
    shorter, longer = sorted((one, other))
    assert -1 <= compute_overlong_penalty(longer, DAPO) <= compute_overlong_penalty(shorter, DAPO) <= 0


@pytest.mark.parametrize(("coefficient", "reward"), [(0.0, 0.0), (0.25, 0.2), (1.0, 0.8)])
def test_stop_properly_scales_truncated_responses_only(coefficient, reward):
    config = ShapingConfig(stop_properly=coefficient)
    assert compute_shaped_reward(0.8, 100, True, config) == pytest.approx(reward)
    assert compute_shaped_reward(0.8, 100, False, config) == 0.8


def test_signed_rewards_with_the_overlong_penalty_are_dapos():
    config = ShapingConfig(signed=True, overlong=DAPO)
    rewards = [
        compute_shaped_reward(reward, length, False, config) for reward in (0, 1) for length in (100, 18_432, 20_480)
    ]
    assert rewards == pytest.approx([-1, -1.5, -2, 1, 0.5, 0])


@given(st.floats(0, 1), st.integers(0, 50_000), st.booleans())
def test_by_default_rewards_stay_as_they_are(reward, length, truncated):
    assert compute_shaped_reward(reward, length, truncated, ShapingConfig()) == reward
