"""What `make bench` compares: episodes and single completions sample the same number of tokens, and medians count."""

import asyncio
from collections import Counter
from itertools import count

import numpy as np
import pytest

from tasks.environments.conversation import ChatTemplate
from tasks.environments.episode import EpisodePlayer
from tasks.environments.sessions import EnvironmentPool
from tasks.generation.interface import Completion
from tasks.verifiers.config import EnvironmentsConfig
from tests.bench.episodes import Load, _medians, alternated, figures
from tests.tiny_model import tokenizer_of


@pytest.mark.long
def test_both_sample_the_same_tokens_at_the_lengths_that_are_asked_for():
    asked = Counter()

    async def generate(_token_ids, sampling, _seed):
        asked[sampling.max_tokens] += 1
        tokens = np.full(sampling.max_tokens, 40, np.int32)
        return Completion("", tokens, np.zeros(len(tokens), np.float32), "length", [])

    async def run():
        tokenizer = tokenizer_of(ends=False)
        player = EpisodePlayer(EnvironmentPool(EnvironmentsConfig()), ChatTemplate(tokenizer, {}))
        clock = count()
        try:
            load = Load(count=4, turns=3, turn_tokens=5, rounds=2)
            return await alternated(load, tokenizer, generate, player, lambda: float(next(clock)))
        finally:
            await player.aclose()

    found = asyncio.run(run())
    assert asked == {15: 3 * 4, 5: 3 * 4 * 3}  # a round before those that count
    assert all(value > 0 for value in found.values())


def test_medians_leave_the_first_round_out():
    rows = {"single": [(99.0, 9.0), (1.0, 0.1), (3.0, 0.3), (2.0, 0.2)]}
    assert dict(_medians(rows)) == {"single/tokens_per_second": 2.0, "single/busy": 0.2}


def test_the_targets_are_97_percent_of_tokens_and_90_of_busy_time():
    nothing = {
        "single/tokens_per_second": 100.0,
        "episodes/tokens_per_second": 96.0,
        "single/busy": 1,
        "episodes/busy": 1,
    }
    turns = {
        "single/tokens_per_second": 100.0,
        "episodes/tokens_per_second": 50.0,
        "single/busy": 0.8,
        "episodes/busy": 0.76,
    }
    one, busy, rate = figures(nothing, turns)
    assert (one.ratio, one.met) == (pytest.approx(0.96), False)
    assert (busy.ratio, busy.met) == (pytest.approx(0.95), True)
    assert (rate.ratio, rate.met) == (pytest.approx(0.5), None)
