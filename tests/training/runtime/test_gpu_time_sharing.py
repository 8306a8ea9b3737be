"""Learner and engines that take turns on their GPUs: the order of events, and a loss of either side in every phase."""

import asyncio
from dataclasses import dataclass, field

import pytest

from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.learner import LoraConfig
from tasks.training.actors.process import ActorLostError
from tasks.training.learner.client import LearnerLostError
from tasks.training.runtime.gpu_time_sharing import Turns
from tests.training.stand_ins import RecordingLearner, Run, ScriptedActor, always, config, never, prompts

LEARNER, ENGINE = "learner", "engine"
ANSWER = always("right", "wrong")


class Gpu:
    """One GPU, on which the learner's states and an engine's must never be together; records what happens to it."""

    def __init__(self):
        self.holds = set()
        self.events = []

    def enter(self, name):
        assert not self.holds - {name}, f"{name} comes while the GPU holds {self.holds}: {self.events[-10:]}"
        self.holds.add(name)

    def record(self, event):
        self.events.append(event)

    def count(self, event):
        return self.events.count(event)


@dataclass
class Faults:
    """Calls that fail once, by name and number; `hang` has those that never return."""

    lose: set = field(default_factory=set)
    hang: set = field(default_factory=set)
    calls: dict = field(default_factory=dict)

    async def called(self, name, error):
        self.calls[name] = number = self.calls.get(name, 0) + 1
        if (name, number) in self.hang:
            await never()
        if (name, number) in self.lose:
            raise error


class SleepyActor(ScriptedActor):
    """An engine that is on the GPU from its start to its sleep or its end, and answers only there."""

    def __init__(self, gpu, faults, name=ENGINE, answer=ANSWER):
        super().__init__(answer)
        self.gpu, self.faults, self.name = gpu, faults, name
        self.awake = asyncio.Event()
        self.asleep = False

    async def _called(self, call):
        self.gpu.record(f"{self.name} {call}")
        await self.faults.called(call, ActorLostError(f"it is lost in {call}"))
        await asyncio.sleep(1)

    async def start(self):
        self.gpu.enter(self.name)
        await self._called("load")
        self.awake.set()

    async def generate(self, prompt_ids, sampling, seed):
        await self.awake.wait()
        await asyncio.sleep(0.1)
        await self.awake.wait()
        assert self.name in self.gpu.holds, "it answers while the learner has the GPU"
        return await super().generate(prompt_ids, sampling, seed)

    async def update(self, path, version, *, keep_cache):
        self.gpu.enter(self.name)
        await self._called("update")
        self.awake.set()
        self.asleep = False
        return await super().update(path, version, keep_cache=keep_cache)

    async def sleep(self):
        self.awake.clear()
        await self._called("sleep")
        self.asleep = True
        self.gpu.holds.discard(self.name)

    async def wake(self):
        if not self.asleep:
            return
        self.gpu.enter(self.name)
        await self._called("wake")
        self.awake.set()
        self.asleep = False

    async def statistics(self):
        await self.faults.called("statistics", ActorLostError("it is lost"))
        return await super().statistics()

    async def kill(self):
        await asyncio.sleep(1)  # until then its process holds its memory
        self.gpu.holds.discard(self.name)
        await super().kill()


class MovingLearner(RecordingLearner):
    """A learner whose states are on the GPU, but between `offload_states` and `reload_states`."""

    def __init__(self, gpu, faults):
        super().__init__()
        self.gpu, self.faults = gpu, faults
        gpu.enter(LEARNER)

    async def _called(self, call):
        self.gpu.record(f"learner {call}")
        try:
            await self.faults.called(call, LearnerLostError(f"a rank is lost in {call}"))
        except LearnerLostError:
            self.gpu.holds.discard(LEARNER)  # its process is gone
            raise
        await asyncio.sleep(1)

    async def step(self, *arguments):
        assert self.gpu.holds == {LEARNER}
        await self._called("step")
        return await super().step(*arguments)

    async def write_weights(self, path):
        assert self.gpu.holds == {LEARNER}
        await self._called("write")
        return await super().write_weights(path)

    async def export(self, folder):
        assert self.gpu.holds == {LEARNER}
        await super().export(folder)

    async def save(self, folder):
        assert self.gpu.holds == {LEARNER}
        await super().save(folder)

    async def restart(self):
        self.gpu.holds.discard(LEARNER)
        self.gpu.enter(LEARNER)
        self.gpu.record("learner restart")
        await super().restart()

    async def offload_states(self):
        await self._called("offload")
        self.gpu.holds.discard(LEARNER)

    async def reload_states(self):
        self.gpu.enter(LEARNER)
        await self._called("reload")


def played(folder, *, lose=(), hang=(), engines=1, answer=ANSWER, **options):
    """A run on GPUs that are taken in turns; the first is the one that the learner and engine 0 are on."""
    faults = Faults(set(lose), set(hang))
    gpu = Gpu()
    options = {"placement": "time_shared", "learner": {"ranks": engines, "zero_stage": 2}, **options}
    actors = {"count": engines, "update_timeout_seconds": 60, "hang_seconds": 20}
    options["actors"] = actors | options.get("actors", {})
    gpus = [gpu, *(Gpu() for _ in range(engines - 1))]

    async def run():
        played = Run(
            folder,
            config(**options),
            prompts(40),
            learner=MovingLearner(gpu, faults),
            make_actor=lambda index: SleepyActor(gpus[index], faults if index == 0 else Faults(), answer=answer),
        )
        await asyncio.wait_for(played.run(), 10_000)
        return played

    return run_in_virtual_time(run()), gpu


def test_a_turn_has_its_order(tmp_path):
    run, gpu = played(tmp_path, steps=2)
    assert run.learner.version == 2
    assert gpu.events == [
        "learner offload",
        "engine load",
        "engine sleep",
        "learner reload",
        "learner step",
        "learner write",
        "learner offload",
        "engine update",  # which wakes it
        "engine sleep",
        "learner reload",
        "learner step",
        "learner write",
    ]
    assert len(run.actors) == 1
    assert run.actors[0].killed


def test_an_engine_without_newer_weights_wakes_with_those_that_it_has(tmp_path):
    _, gpu = played(tmp_path, steps=4, actors={"sync_every": 2})
    turns = "; ".join(event for event in gpu.events if event.startswith("engine"))
    assert turns.startswith("engine load; engine sleep; engine wake; engine sleep; engine update; engine sleep")


def test_with_an_adapter_an_engine_takes_it_before_its_first_request(tmp_path):
    run, gpu = played(tmp_path, steps=1, lora=LoraConfig(rank=2, alpha=2))
    assert gpu.events[:4] == ["learner write", "learner offload", "engine load", "engine update"]
    assert run.actors[0].updates == [0]


def test_several_engines_all_leave_before_the_learner_comes(tmp_path):
    run, _ = played(tmp_path, steps=3, engines=3, groups_per_step=4)
    assert run.learner.version == 3
    assert all(("sleep",) not in actor.diary or actor.killed for actor in run.actors)


@pytest.mark.parametrize("updates", ["in_flight", "drained", "barrier", "static"])
@pytest.mark.parametrize("async_steps", [0, 2])
def test_every_kind_of_update_goes_on_in_turns(tmp_path, updates, async_steps):
    run, _ = played(tmp_path, steps=4, engines=2, async_steps=async_steps, actors={"updates": updates})
    assert run.learner.version == 4
    if async_steps == 0:
        for row in run.rows("trained"):
            assert row["first_version"] == row["last_version"] == row["step"]


@pytest.mark.parametrize("async_steps", [1, 4])  # 4: batches are ready when an engine has yet to take the version
def test_a_validation_sleeps_with_its_engine_and_answers_from_one_version(tmp_path, async_steps):
    validation = {"every": 1, "prompts": 4, "samples": 2}
    run, gpu = played(tmp_path, steps=4, async_steps=async_steps, validation=validation)
    versions = [row["validation/version"] for row in run.metrics() if "validation/version" in row]
    assert versions[-1] == 4
    assert gpu.count("learner step") == 4


@pytest.mark.parametrize(
    ("call", "fault", "number"),
    [
        ("load", "lose", 1),  # that a load ends is up to `RayActor.start`, which has a limit
        *((call, fault, number) for call in ("update", "sleep") for fault in ("lose", "hang") for number in (1, 2)),
    ],
)
def test_an_engine_that_is_lost_in_any_phase_is_replaced_in_the_engines_turn(tmp_path, call, fault, number):
    run, gpu = played(tmp_path, steps=4, stall_seconds=500, **{fault: [(call, number)]})
    assert run.learner.version == 4
    assert len(run.actors) == 2
    assert len(run.learner.steps) == 4
    assert gpu.count("learner restart") == 0


def test_an_engine_that_dies_asleep_is_replaced_when_the_learner_has_left(tmp_path):
    class Slow(MovingLearner):
        async def step(self, *arguments):
            await asyncio.sleep(100)
            return await super().step(*arguments)

    faults, gpu = Faults(), Gpu()
    actors = []

    class Mortal(SleepyActor):
        async def statistics(self):
            if self.asleep and len(actors) == 1:
                raise ActorLostError("it died in its sleep")
            return await super().statistics()

    async def run():
        def make(_):
            actors.append(Mortal(gpu, faults))
            return actors[-1]

        options = {"placement": "time_shared", "stall_seconds": 500, "actors": {"hang_seconds": 20}}
        played = Run(tmp_path, config(**options), prompts(40), learner=Slow(gpu, faults), make_actor=make)
        await asyncio.wait_for(played.run(), 10_000)
        return played

    played = run_in_virtual_time(run())
    assert played.learner.version == 3
    assert len(actors) == 2
    reloaded = gpu.events.index("learner reload")
    second = [index for index, event in enumerate(gpu.events) if event == "engine load"][1]
    assert "learner offload" in gpu.events[reloaded:second]


def test_a_sleeping_engine_does_not_hang(tmp_path):
    class Slow(MovingLearner):
        async def step(self, *arguments):
            await asyncio.sleep(300)
            return await super().step(*arguments)

    async def run():
        gpu, faults = Gpu(), Faults()

        async def waits(actor, _):
            await asyncio.sleep(5)
            await actor.awake.wait()
            return ["right", "wrong"]

        options = {"placement": "time_shared", "stall_seconds": 5000, "actors": {"hang_seconds": 20}}
        made = []
        played = Run(
            tmp_path,
            config(**options),
            prompts(40),
            learner=Slow(gpu, faults),
            make_actor=lambda _: made.append(SleepyActor(gpu, faults, answer=waits)) or made[-1],
        )
        await asyncio.wait_for(played.run(), 10_000)
        return made

    assert len(run_in_virtual_time(run())) == 1


@pytest.mark.parametrize("call", ["reload", "step", "write", "offload"])
@pytest.mark.parametrize("fault", ["lose", "hang"])
@pytest.mark.parametrize("number", [1, 2])
def test_a_rank_that_is_lost_in_any_phase_is_replaced_in_the_learners_turn(tmp_path, call, fault, number):
    run, gpu = played(tmp_path, steps=4, **{fault: [(call, number)]})
    assert run.learner.version == 4
    assert gpu.count("learner restart") == 1
    assert len(run.actors) == 1  # the engine goes on
    assert [row["learner_restarts"] for row in run.metrics()].count(1.0) == 1


def test_both_lost_in_one_turn(tmp_path):
    run, _ = played(tmp_path, steps=4, lose=[("sleep", 2), ("reload", 2), ("update", 2), ("offload", 3)])
    assert run.learner.version == 4


def test_a_resumed_run_begins_with_the_learners_turn(tmp_path):
    played(tmp_path, steps=2, checkpoint_every=1)
    run, gpu = played(tmp_path, steps=4, checkpoint_every=1)
    assert run.learner.version == 4
    assert gpu.events[:3] == ["learner write", "learner offload", "engine load"]


def test_sleep_is_idle_time_once(tmp_path):
    """Of a step, the engine answers for 0.1 s; else it sleeps, or has nothing to generate."""

    class Slow(MovingLearner):
        async def step(self, *arguments):
            await asyncio.sleep(100)
            return await super().step(*arguments)

    gpu, faults = Gpu(), Faults()

    async def run():
        options = {"placement": "time_shared", "stall_seconds": 500, "steps": 4, "async_steps": 0}
        options["actors"] = {"updates": "barrier"}
        run = Run(
            tmp_path,
            config(**options),
            prompts(40),
            learner=Slow(gpu, faults),
            make_actor=lambda _: SleepyActor(gpu, faults),
        )
        await asyncio.wait_for(run.run(), 10_000)
        return run

    rows = run_in_virtual_time(run()).metrics()[1:3]
    for row in rows:
        assert row["step_seconds"] > 100
        assert (1 - row["actors_idle"]) * row["step_seconds"] == pytest.approx(0.1, abs=0.01)


def test_turns_without_any_never_wait():
    async def main():
        turns = Turns()
        await turns.enter(0)
        await turns.enter(1)
        assert not turns.are_learners

    run_in_virtual_time(main())


def test_the_learner_waits_for_the_last_engine_and_the_next_engine_for_the_learner():
    async def main():
        turns = Turns(taken=True)
        entering = asyncio.create_task(turns.enter(0))
        await asyncio.sleep(1)
        assert not entering.done()
        turns.give()
        await entering
        await turns.enter(1)
        taking = asyncio.create_task(turns.take())
        await asyncio.sleep(1)
        late = asyncio.create_task(turns.enter(2))
        turns.leave(0)
        await asyncio.sleep(1)
        assert not taking.done()
        turns.leave(1)
        await taking
        await asyncio.sleep(1)
        assert not late.done()
        late.cancel()

    run_in_virtual_time(main())
