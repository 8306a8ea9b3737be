"""A run whose processes are killed for memory goes on once, and ends at the second time, on whichever nodes."""

import asyncio

from tasks.machine.memory_limit import MemoryLimitError, MemoryWatch
from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.run import TrainingConfig
from tasks.training.cluster import memory
from tasks.training.cluster.memory import wait_until_killed_again
from tests.machine.test_memory_limit import Group, training

CONFIG = TrainingConfig.model_validate({"learner": {"restart_window_seconds": 600}})


class Killing:
    """The memory of two nodes, of this one and then of another one by turns, on which the kernel kills at `seconds`."""

    def __init__(self, folder, version, *seconds):
        self.groups = {"": Group(folder / "this", version), "10.0.0.3": Group(folder / "other", version)}
        for group in self.groups.values():
            training(group)
        self.groups["10.0.0.3"].limit_to(str(11 * 2**30))
        self.watch = MemoryWatch(self.groups[""].read())
        self.seconds = seconds
        self.began = asyncio.get_running_loop().time()

    async def look(self):
        passed = asyncio.get_running_loop().time() - self.began
        times = sum(second <= passed for second in self.seconds)
        for number, (node, group) in enumerate(self.groups.items()):
            group.count((times + 1 - number) // 2)
            self.watch.see(group.read().read(), node)


async def ends_after(monkeypatch, *arguments):
    killing = Killing(*arguments)
    monkeypatch.setattr(memory, "watch", lambda: killing.watch)
    try:
        await asyncio.wait_for(wait_until_killed_again(killing, CONFIG), 5000)
    except TimeoutError:
        return None
    except MemoryLimitError as error:
        return asyncio.get_running_loop().time() - killing.began, str(error)


def test_the_second_kill_within_the_window_ends_the_run(tmp_path, monkeypatch):
    seconds, message = run_in_virtual_time(ends_after(monkeypatch, tmp_path, 2, 100, 300, 310))
    assert 300 <= seconds <= 300 + memory.LOOK_SECONDS
    assert "the memory limit of 11.0 GiB of node 10.0.0.3; the largest processes were learner rank 6.1 GiB" in message
    assert "2 times within 600 s" in message


def test_kills_that_are_far_apart_do_not_end_the_run(tmp_path, monkeypatch):
    assert run_in_virtual_time(ends_after(monkeypatch, tmp_path, 1, 100, 800, 1500)) is None
