"""Kills by Ray's monitor: a real one, and its text where it is of another node."""

import asyncio
import re
import time

import pytest

from tasks.machine import memory_limit, ray_memory
from tasks.machine.memory_limit import GIB, MemoryLimit, MemoryWatch, Process, Reading
from tasks.machine.ray_memory import RayMemory
from tasks.training.actors.broadcast import RelayError

TEXT = """2 worker(s) were killed due to the node running low on memory. Memory on the node (IP: {}, ID: 60c2f67a) was \
10.55GB used / 11.00GB limit (0.959091)
OOM kill reason: Memory usage {}B exceeded threshold of 11220837990B (95.0% of 11811408000B limit)
Ray killed 2 worker(s) based on the killing policy
Considered workers: [
Selected to kill: (Actor(96): job ID=01, lease ID=01, task name=RelayProcess.__init__, required resources={{}}, \
pid=31, actual memory used=0.06GB, worker ID=04)
Selected to kill: (Actor(4a): job ID=01, lease ID=00, task name=LearnerRank.__init__, required resources={{CPU: 2}}, \
pid=30, actual memory used=9.48GB, worker ID=e1)
(Actor(35): job ID=01, lease ID=02, task name=ActorProcess.__init__, required resources={{}}, pid=32, actual memory \
used=0.50GB, worker ID=4a)
]
Top 10 memory users: PID\tMEM(GB)\tCOMMAND
30\t9.48\tray::LearnerRank.step
41\t0.90\tVLLM::EngineCore
32\t0.50\tray::ActorProcess
Refer to the documentation on how to address the out of memory issue.
"""
"""Ray's text on a kill, shortened; left out are the address of the node and the bytes that were used."""
DIED = (
    "The actor died unexpectedly before finishing this task.\n\tclass_name: LearnerRank\n\tip: {}\nThe actor is dead."
)
"""Ray's text on a process that ended in another way, shortened; left out is the address of its node."""
OWN, OTHER = "10.0.0.1", "10.0.0.3"


class Nodes:
    """A process on another node, which gives the readings one after the other; None: it does not answer."""

    name = OTHER

    def __init__(self, *readings):
        self.readings = list(readings)

    def of(self, node):
        assert node == "b"
        return self

    async def memory(self):
        reading = self.readings.pop(0) if len(self.readings) > 1 else self.readings[0]
        if reading is None:
            raise RelayError("node 10.0.0.3: killed")
        return reading


@pytest.fixture
def watch(monkeypatch, tmp_path):
    """A watch of a machine without a limit and processes; Ray knows two nodes and `kills`, a set that tests fill."""
    watch = MemoryWatch(MemoryLimit.from_this_process(tmp_path, tmp_path))
    watch.rays = set()
    monkeypatch.setattr(ray_memory, "watch", lambda: watch)
    monkeypatch.setattr(ray_memory, "_ask_ray", lambda: ({"a": OWN, "b": OTHER}, "a", watch.rays))
    return watch


def rank(gib):
    return {30: Process.from_command("ray::LearnerRank.step", gib)}


def test_rays_text_suffices_where_the_process_of_the_readings_is_killed_as_well(watch):
    async def lost():
        memory = RayMemory(Nodes(None))
        await memory.look()
        reasons = {await memory.find_reason(RuntimeError(TEXT.format(OTHER, 7))) for _ in range(2)}
        watch.rays = {TEXT.format(OTHER, 7)}  # the table has what the call has told
        await memory.look()
        return reasons

    [reason] = asyncio.run(lost())
    assert reason == (
        "Ray killed 2 processes (learner rank 9.5 GiB, relay 0.1 GiB) because of the memory limit of 11.0 GiB of node "
        "10.0.0.3; the largest processes were learner rank 9.5 GiB, engine 0.9 GiB, engine's actor 0.5 GiB; lower "
        "learner.micro_batch_tokens, or raise memory_gib of the pod"
    )
    assert (watch.kills, watch.report(), watch.describe_recent()) == (1, reason, "")


def test_kills_that_no_call_tells_of_are_counted_and_those_before_the_run_are_not(watch):
    async def looks():
        memory = RayMemory(Nodes(Reading(11 * GIB, rank(9.0))))
        watch.rays = {TEXT.format(OTHER, 7)}
        await memory.look()
        assert watch.kills == 0
        watch.rays = {TEXT.format(OTHER, 7), TEXT.format(OTHER, 8), TEXT.format(OWN, 9)}
        await memory.look()

    asyncio.run(looks())
    assert watch.kills == 2
    assert watch.describe_recent().startswith(
        "Ray killed 2 processes (learner rank 9.5 GiB, relay 0.1 GiB) because of the mach"
    )
    assert "of node 10.0.0.3; the largest processes were learner rank 9.5 GiB; lower" in watch.describe_recent(OTHER)


def test_a_process_that_the_kernel_killed_on_another_node_is_looked_for_there(watch):
    async def lost():
        memory = RayMemory(Nodes(Reading(11 * GIB, rank(9.0)), Reading(11 * GIB, rank(9.7)), Reading(11 * GIB, {}, 1)))
        await memory.look()
        elsewhere = await memory.find_reason(RuntimeError(DIED.format(OWN)))
        without = await memory.find_reason(RuntimeError("The actor is unavailable"))
        before = await memory.find_reason(RuntimeError(DIED.format(OTHER)))
        return elsewhere, without, before, await memory.find_reason(RuntimeError(DIED.format(OTHER)))

    *others, reason = asyncio.run(lost())
    assert [other.split(".")[0] for other in others] == [
        "The actor died unexpectedly before finishing this task",
        "The actor is unavailable",
        "The actor died unexpectedly before finishing this task",
    ]
    assert reason.startswith(
        "the kernel killed a process (learner rank 9.7 GiB) because of the memory limit of 11.0 GiB of node 10.0.0.3; "
    )


def test_a_node_that_is_cut_off_is_asked_once_and_its_answer_counts_when_it_comes(watch, monkeypatch):
    monkeypatch.setattr(ray_memory, "ANSWER_SECONDS", 0.01)

    class CutOff(Nodes):
        asked = 0

        async def memory(self):
            self.asked += 1
            await back.wait()  # a call that is cancelled would keep Ray from making any after it
            return await super().memory()

    async def looks():
        node = CutOff(Reading(11 * GIB, rank(9.0)))
        memory = RayMemory(node)
        for _ in range(3):
            await memory.look()
        assert (node.asked, watch.find_reading(OTHER)) == (1, None)
        back.set()
        await asyncio.sleep(0)
        await memory.look()
        assert (node.asked, watch.find_reading(OTHER).limit) == (2, 11 * GIB)

    back = asyncio.Event()
    asyncio.run(looks())


@pytest.mark.complete
@pytest.mark.engine
def test_a_real_kill_by_rays_monitor_is_the_reason_of_the_loss_and_is_counted_once(monkeypatch):
    import ray

    watch = MemoryWatch(MemoryLimit.from_this_process())
    for module in (memory_limit, ray_memory):
        monkeypatch.setattr(module, "watch", lambda: watch)

    class LearnerRank:
        def work(self):
            time.sleep(600)

    async def lost(started_again):
        options = {"max_restarts": 1, "max_task_retries": 0} if started_again else {}
        rank = ray.remote(LearnerRank).options(num_cpus=0, **options).remote()
        with pytest.raises(ray.exceptions.RayError) as raised:
            await rank.work.remote()
        return await memory.find_reason(raised.value)

    async def run():
        await memory.look()
        reason = await lost(started_again=False)
        await memory.look()
        assert watch.kills == 1
        await lost(started_again=True)
        while watch.kills < 2:
            await asyncio.sleep(0.1)
            await memory.look()
        return reason

    memory = RayMemory()
    full = {"memory_usage_threshold": 0.0}  # whatever is used is too much
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False, _system_config=full)
    try:
        reason = asyncio.run(asyncio.wait_for(run(), 300))
    finally:
        ray.shutdown()
    assert re.match(r"Ray killed a process \(learner rank 0\.\d GiB\) because of ", reason)
