"""The fleet, with actors that are clocks: who is given how much, and what slow, late and lost actors cost."""

import asyncio
from itertools import pairwise
from random import Random

import pytest

from tasks.planning.simulated_actors import (
    ClockActor,
    ClockLearner,
    EngineClock,
    estimate_mean_context,
    make_length_sampler,
)
from tasks.planning.simulated_run import Workload, simulate
from tasks.planning.virtual_clock import NothingToDoError, run_in_virtual_time
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import GPUS, KNOWN, compute_bandwidth_utilization
from tests.bench import rungs

ENGINE = EngineClock(step_seconds=0.01, max_num_seqs=16)


def chance(seed):
    return Random(seed)


def recipe(**options):
    actors = {"count": 4, "engine": {"max_model_len": 4096, "max_num_seqs": 16}, **options.pop("actors", {})}
    defaults = {"steps": 100, "groups_per_step": 4, "sampling": {"samples": 8, "max_tokens": 2000}, "async_steps": 4}
    return TrainingConfig.model_validate({**defaults, "max_staleness": 100, **options, "actors": actors})


def run(engine, **options):
    lengths = make_length_sampler(chance(1), 500, 2000)
    return simulate(recipe(**options), engine, ClockLearner(1e9), Workload(lengths))


@pytest.mark.complete
@pytest.mark.long
def test_an_actor_that_is_ten_times_slower_costs_no_more_than_what_it_lacks():
    slow = EngineClock(step_seconds=0.1, max_num_seqs=16)
    without = run(ENGINE, async_steps=8).tokens_per_second
    with_one = run(lambda index: slow if index == 2 else ENGINE, async_steps=8).tokens_per_second
    assert with_one / without == pytest.approx(3.1 / 4, rel=0.03)


@pytest.mark.long
def test_an_actor_that_is_late_is_given_its_share_within_a_completion_time():
    started_at = 3.0
    asked = {index: [] for index in range(4)}

    def clock(index):
        return EngineClock(0.01, max_num_seqs=16, start_seconds=started_at if index == 3 else 0.02 * index)

    class Watched(ClockActor):
        async def generate(self, *about):
            asked[self.index].append(asyncio.get_running_loop().time())
            return await super().generate(*about)

    def make(index):
        actor = Watched(clock(index), make_length_sampler(chance(index), 500, 2000))
        actor.index = index
        return actor

    simulate(recipe(steps=8), make, ClockLearner(1e9), Workload(lambda: 0))
    completion_time = 500 * 0.01
    early = [sum(time < started_at for time in asked[index]) for index in range(3)]
    assert early[0] < 2 * early[2]  # nor does the first that is ready take everything
    assert sum(time < started_at + completion_time for time in asked[3]) >= 16


def test_a_response_ends_when_its_tokens_are_made_however_many_share_the_engine():
    async def main():
        actor = ClockActor(EngineClock(0.01, 0.001, max_num_seqs=2), iter([100, 50, 10]).__next__)
        await actor.start()
        loop, sampling, times = asyncio.get_running_loop(), recipe().sampling, []

        async def asked():
            await actor.generate([1], sampling, None)
            times.append(loop.time())

        await asyncio.gather(asked(), asked(), asked())
        return times, (await actor.statistics()).generated_tokens

    times, tokens = run_in_virtual_time(main())
    # 50 steps of two sequences; then the third is in, for 10 steps; then 40 of the first by itself
    assert times == pytest.approx([50 * 0.012, 60 * 0.012, 60 * 0.012 + 40 * 0.011], abs=1e-3)
    assert tokens == 160


def test_an_update_stops_the_clock_and_marks_the_tokens():
    async def main():
        actor = ClockActor(EngineClock(0.01, update_seconds=1.0), lambda: 100)
        await actor.start()
        request = asyncio.create_task(actor.generate([1], recipe().sampling, None))
        await asyncio.sleep(0.4)
        await actor.update("", 1, keep_cache=True)
        return await request, asyncio.get_running_loop().time()

    completion, seconds = run_in_virtual_time(main())
    assert seconds == pytest.approx(2.0, abs=1e-3)
    assert [(span.version, span.start, span.end) for span in completion.versions] == [(0, 0, 40), (1, 40, 100)]


def test_a_simulated_engine_that_sleeps_makes_no_token_and_computes_its_cache_again():
    async def main():
        clock = EngineClock(0.01, update_seconds=1.0, sleep_seconds=2.0, wake_seconds=3.0, prefill_tokens_per_second=80)
        actor = ClockActor(clock, lambda: 100)
        await actor.start()
        loop = asyncio.get_running_loop()
        request = asyncio.create_task(actor.generate([1], recipe().sampling, None))
        await asyncio.sleep(0.4)
        await actor.sleep()
        await asyncio.sleep(5)
        assert (await actor.statistics()).generated_tokens == 40
        await actor.update("", 1, keep_cache=True)
        woken = loop.time()
        await asyncio.sleep(0.1)
        await actor.sleep()
        await actor.wake()
        await actor.wake()  # the second does nothing
        await request
        return woken, loop.time()

    woken, ended = run_in_virtual_time(main())
    assert woken == pytest.approx(0.4 + 2 + 5 + 1 + 3 + 40 / 80, abs=1e-3)
    assert ended == pytest.approx(woken + 0.1 + 2 + 3 + 50 / 80 + 0.5, abs=1e-3)


def test_drawn_lengths_have_the_mean_and_the_limit():
    draw = make_length_sampler(chance(3), 14_628, 32_768)
    lengths = [draw() for _ in range(20_000)]
    assert sum(lengths) / len(lengths) == pytest.approx(14_628, rel=0.02)
    assert max(lengths) == 32_768


def test_waiting_for_nobody_is_an_error_and_no_hang():
    with pytest.raises(NothingToDoError):
        run_in_virtual_time(asyncio.Event().wait())


def test_engines_of_the_ladder_are_as_fast_as_the_published_ones_by_hand():
    """One node of 8 A100s generates 2,949 tokens/s at 43% of their bandwidth; responses are as long as Olmo 3's."""
    sequences = rungs.ENGINE.max_num_seqs
    seconds = rungs.ENGINE.step_seconds + sequences * rungs.ENGINE.sequence_seconds
    assert rungs.ENGINES * sequences / seconds == pytest.approx(rungs.PUBLISHED["+ in-flight updates"], rel=0.01)
    context = estimate_mean_context(make_length_sampler(chance(0), rungs.MEAN_TOKENS, rungs.LONGEST))
    mbu = compute_bandwidth_utilization(
        2949 / 8, KNOWN["Qwen2.5-7B"], GPUS["A100"], gpus=1, sequences=sequences, context=context
    )
    assert mbu == pytest.approx(0.4321, rel=0.06)


@pytest.mark.complete
@pytest.mark.long
def test_each_rung_of_the_published_ladder_is_above_the_last():
    speeds = {rung.name: rung.simulated.trained_tokens_per_second for rung in rungs.build_ladder()}
    ours = [speeds[name] for name in rungs.PUBLISHED]
    assert all(low < high for low, high in pairwise(ours))
    assert ours[-1] / ours[0] > 3.35  # 2,949 / 881
    assert ours[-1] / speeds["synchronous, wide"] > 1.5


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_active_sampling_generates_little_more_than_what_teaches_nothing_costs_where_rounds_discard_a_surplus(share):
    """Generated over trained tokens, at a share of zero-variance groups; the bound is 1 / (1 - share)."""

    def generated_over_trained(**options):
        workload = Workload(make_length_sampler(chance(2), 500, 2000), zero_variance=share)
        config = recipe(steps=60, groups_per_step=16, actors={"count": 4}, **options)
        simulated = simulate(config, ENGINE, ClockLearner(1e9), workload, seed=3)
        return simulated.tokens_per_second / simulated.trained_tokens_per_second

    bound = 1 / (1 - share)
    active = generated_over_trained(async_steps=4)
    # DAPO generates batches of 3 times the size, and discards what is left of a round
    dynamic = generated_over_trained(
        async_steps=0, max_staleness=0, resampling={"kind": "dynamic", "batch_multiplier": 3}
    )
    assert active == pytest.approx(bound, rel=0.1)
    assert dynamic > 1.1 * active
