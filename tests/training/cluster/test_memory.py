"""A run whose processes the kernel kills for memory goes on once, and ends at the second kill."""

import asyncio

import pytest

from tasks.machine.memory_limit import MemoryLimitError, MemoryWatch
from tasks.training.cluster.memory import killed_again
from tasks.training.config import TrainingConfig
from tasks.training.simulation.clock import run_in_virtual_time
from tests.machine.test_memory_limit import Group, training

CONFIG = TrainingConfig.model_validate({"learner": {"restart_window_seconds": 600}})


class Killing(MemoryWatch):
    """A watch under which the kernel kills the learner rank at these seconds."""

    def __init__(self, group, *seconds):
        training(group)
        super().__init__(group.read())
        self.group, self.seconds = group, seconds

    async def kill(self, clock):

        for number, second in enumerate(self.seconds, 1):
            await asyncio.sleep(second - clock())
            self.group.count(number)
            self.look()


async def ends_after(watch):

    clock = asyncio.get_running_loop().time
    began = clock()
    killing = asyncio.create_task(watch.kill(lambda: clock() - began))
    try:
        await asyncio.wait_for(killed_again(watch, CONFIG), 5000)
    except TimeoutError:
        return None
    except MemoryLimitError as error:
        return clock() - began, str(error)
    finally:
        killing.cancel()


def test_the_second_kill_within_the_window_ends_the_run(tmp_path):
    seconds, message = run_in_virtual_time(ends_after(Killing(Group(tmp_path, 2), 100, 300, 310)))
    assert seconds == pytest.approx(301, abs=1)
    assert "the memory limit of 14.0 GiB; the largest processes were learner rank 6.1 GiB" in message
    assert "2 kills within 600 s" in message


def test_kills_that_are_far_apart_do_not_end_the_run(tmp_path):
    assert run_in_virtual_time(ends_after(Killing(Group(tmp_path, 1), 100, 800, 1500))) is None
