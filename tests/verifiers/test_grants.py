"""Calls that have had little time go first, and what hangs is in the way of those only that take as long."""

import asyncio

import pytest

from tasks.verifiers.grants import PrioritySemaphore, grants


@pytest.mark.parametrize(
    ("first", "limit", "granted"),
    [
        (0.5, 0.25, [0.25]),
        (0.5, 0.5, [0.5]),
        (1, 10, [1, 4, 10]),
        (1, 9, [1, 4, 9]),
        (1, 8, [1, 8]),
        (1, 100, [1, 4, 16, 100]),
    ],
)
def test_grants_grow_fourfold_to_the_limit(first, limit, granted):
    assert list(grants(first, limit)) == granted


@pytest.mark.parametrize("limit", [0.03 * 1.1**power for power in range(100)])
def test_what_hangs_costs_at_most_two_thirds_more_than_its_limit(limit):
    *begun_anew, last = grants(0.03, limit)
    assert last == limit
    assert sum(begun_anew) <= limit * 2 / 3


def order_of(asked, cancelled=()):
    """In which order places come to those that ask for them while the only one is taken."""

    async def scenario():
        semaphore, came = PrioritySemaphore(1), []

        async def one(name, grant):
            async with semaphore.hold(grant):
                came.append(name)

        async with semaphore.hold(0.0):
            waiting = {name: asyncio.create_task(one(name, grant)) for name, grant in asked}
            await asyncio.sleep(0)
            for name in cancelled:
                waiting[name].cancel()
        await asyncio.gather(*waiting.values(), return_exceptions=True)
        async with asyncio.timeout(1), semaphore.hold(9.0):  # none was lost
            return came

    return asyncio.run(scenario())


def test_the_smallest_grant_goes_first_and_among_equals_who_came_first():
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
