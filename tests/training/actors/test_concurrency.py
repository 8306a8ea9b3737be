"""The number of sequences that an engine is given finds what its KV cache holds."""

import asyncio
import random

import pytest

from tasks.planning.simulated_actors import ClockActor, ClockLearner, EngineClock, make_length_sampler
from tasks.planning.simulated_run import Workload, simulate
from tasks.recipe.run import TrainingConfig
from tasks.training.actors.concurrency import Concurrency


def test_without_preemptions_an_engine_is_given_all_that_it_runs():
    engine = Concurrency(64, 1)
    for _ in range(5):
        engine.observe(running=64, kv_cache_usage=0.8, preemptions=0)
    assert engine.limit == 64


def test_a_preemption_takes_a_quarter_of_what_did_not_fit():
    engine = Concurrency(64, 1)
    engine.observe(running=36, kv_cache_usage=1.0, preemptions=4)
    assert engine.limit == 30  # 0.75 * 40


def test_room_is_found_again_a_sixteenth_at_a_time_and_only_while_it_is_used():
    engine = Concurrency(64, 1)
    engine.observe(30, 1.0, 2)
    assert engine.limit == 24
    engine.observe(10, 0.2, 0)
    assert engine.limit == 24  # it was not given that many, so that nothing is known of more
    engine.observe(24, 0.95, 0)
    assert engine.limit == 24  # full
    engine.observe(24, 0.6, 0)
    assert engine.limit == 28


@pytest.mark.parametrize("least", [1, 8, 100])
def test_the_limit_stays_within_its_bounds(least):
    engine, chance = Concurrency(64, least), random.Random(least)
    for _ in range(1000):
        engine.observe(chance.randint(0, 64), chance.random(), chance.choice([0, 0, 5]))
        assert min(least, 64) <= engine.limit <= 64


class CrowdedActor(ClockActor):
    """Its KV cache holds `FITS` sequences."""

    FITS = 20

    async def statistics(self):
        statistics = await super().statistics()
        self.lost = getattr(self, "lost", 0) + max(statistics.running - self.FITS, 0)
        statistics.kv_cache_usage = min(statistics.running / self.FITS, 1.0)
        statistics.preemptions = self.lost
        return statistics


@pytest.mark.long
def test_a_fleet_gives_each_engine_about_what_fits():
    given = []

    class Watched(CrowdedActor):
        async def statistics(self):
            figures = await super().statistics()
            given.append((asyncio.get_running_loop().time(), figures.running))
            return figures

    chance = random.Random(0)
    lengths = make_length_sampler(chance, 500, 2000)
    config = TrainingConfig.model_validate(
        {
            "steps": 150,
            "groups_per_step": 8,
            "sampling": {"samples": 8, "max_tokens": 2000},
            "async_steps": 4,
            "max_staleness": 100,
            "actors": {
                "count": 2,
                "engine": {"max_model_len": 4096, "max_num_seqs": 64},
                "prefetch": 0,
                "hang_seconds": 20,
            },
        }
    )
    clock = EngineClock(step_seconds=0.01, max_num_seqs=64)
    simulate(config, lambda _: Watched(clock, lengths), ClockLearner(1e9), Workload(lengths))
    later = [running for time, running in given if time > given[-1][0] / 2]
    assert CrowdedActor.FITS / 2 < sum(later) / len(later) < CrowdedActor.FITS * 1.2
