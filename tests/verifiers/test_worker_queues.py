"""Calls that have had little time go first, and what hangs is in the way of those only that take as long."""

import asyncio

import pytest

from tasks.verifiers.worker_queues import PrioritySemaphore, WorkerLost, WorkerQueues, generate_cpu_budgets


@pytest.mark.parametrize(
    ("first", "limit", "budgets"),
    [
        (0.5, 0.25, [0.25]),
        (0.5, 0.5, [0.5]),
        (1, 10, [1, 4, 10]),
        (1, 9, [1, 4, 9]),
        (1, 8, [1, 8]),
        (1, 100, [1, 4, 16, 100]),
    ],
)
def test_budgets_grow_fourfold_to_the_limit(first, limit, budgets):
    assert list(generate_cpu_budgets(first, limit)) == budgets


@pytest.mark.parametrize("limit", [0.03 * 1.1**power for power in range(100)])
def test_what_hangs_costs_at_most_two_thirds_more_than_its_limit(limit):
    *overrun, last = generate_cpu_budgets(0.03, limit)
    assert last == limit
    assert sum(overrun) <= limit * 2 / 3


def order_of(asked, cancelled=()):
    """In which order places come to those that ask for them while the only one is taken."""

    async def scenario():
        semaphore, came = PrioritySemaphore(1), []

        async def one(name, budget):
            async with semaphore.hold(budget):
                came.append(name)

        async with semaphore.hold(0.0):
            waiting = {name: asyncio.create_task(one(name, budget)) for name, budget in asked}
            await asyncio.sleep(0)
            for name in cancelled:
                waiting[name].cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        async with asyncio.timeout(1), semaphore.hold(9.0):  # none was lost
            return came

    return asyncio.run(scenario())


def test_the_smallest_budget_goes_first_and_among_equals_who_came_first():
    asked = [("hangs", 10.0), ("slow", 0.1), ("slower", 0.5), ("slow too", 0.1)]
    assert order_of(asked) == ["slow", "slow too", "slower", "hangs"]


def test_who_is_cancelled_leaves_the_place_to_others():
    asked = [("first", 0.1), ("second", 0.1), ("third", 0.1)]
    assert order_of(asked, cancelled=["first", "third"]) == ["second"]


def test_who_is_cancelled_with_a_place_at_hand_gives_it_back():
    async def scenario():
        semaphore = PrioritySemaphore(1)

        async def one():
            async with semaphore.hold(1.0):
                pass

        async with semaphore.hold(0.0):
            waiting = asyncio.create_task(one())
            await asyncio.sleep(0)
        waiting.cancel()  # the place has been handed over, and the task has not run since
        await asyncio.gather(waiting, return_exceptions=True)
        async with asyncio.timeout(1), semaphore.hold(1.0):
            return True

    assert asyncio.run(scenario())


def queues(processes=2):
    """Return queues with budgets of 1, 4 and 10 s, whose workers are their number and niceness."""
    return WorkerQueues(processes, 1, 10, lambda count, nice: (count, nice))


def test_a_call_that_overruns_goes_from_the_fast_queue_through_the_budgets_of_the_slow_one():
    calls = []

    async def needs_5_seconds(workers, seconds, again):
        calls.append((workers, seconds, again))
        return "done" if seconds >= 5 else None

    async def scenario():
        both = queues(processes=3)
        return await both.run_fast(needs_5_seconds), await both.run_slow(needs_5_seconds), both.slow_calls

    assert asyncio.run(scenario()) == (None, "done", 1)
    assert calls == [((3, 0), 1, False), ((2, 5), 4, False), ((2, 5), 10, False)]


def test_a_call_that_loses_its_worker_gets_another_and_no_third():
    async def loses_two(workers, seconds, again):
        raise WorkerLost("again" if again else "once")

    async def loses_one(workers, seconds, again):
        if not again:
            raise WorkerLost("once")
        return "done"

    async def scenario():
        both = queues(processes=1)
        assert await both.run_fast(loses_one) == "done"
        with pytest.raises(WorkerLost, match="again"):
            await both.run_fast(loses_two)
        assert await both.run_fast(loses_one) == "done"  # the slot is free again

    asyncio.run(scenario())
