"""The states of an actor slot, and the transitions between them: those that are legal, and no others."""

import asyncio

import pytest

from tasks.generation.interface import EngineStatistics
from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.run import ActorsConfig
from tasks.training.actors.slot import MAX_BACK_OFF, ActorSlot, SlotState
from tasks.training.groups.group import Group
from tests.training.stand_ins import ScriptedActor, always, prompts

ACTOR = ScriptedActor(always("right"))

TO = {
    SlotState.EMPTY: [],
    SlotState.WAITING_FOR_RESOURCES: ["create"],
    SlotState.LOADING: ["create", "load"],
    SlotState.UPDATING: ["create", "load", "start with weights to take"],
    SlotState.SERVING: ["create", "load", "start"],
    SlotState.ASLEEP: ["create", "load", "start", "sleep"],
    SlotState.BROKEN: ["create", "load", "start", "fail"],
    SlotState.BACKING_OFF: ["create", "load", "start", "empty", "back_off"],
}
"""By state, calls that bring a new slot into it."""

LEGAL = {
    "create": {SlotState.EMPTY, SlotState.BACKING_OFF},
    "load": {SlotState.WAITING_FOR_RESOURCES},
    "start": {SlotState.LOADING},
    "update": {SlotState.SERVING, SlotState.ASLEEP, SlotState.BROKEN},
    "serve": {SlotState.UPDATING, SlotState.BROKEN},
    "sleep": {SlotState.SERVING, SlotState.BROKEN},
    "wake": {SlotState.ASLEEP, SlotState.BROKEN},
    "empty": set(SlotState) - {SlotState.EMPTY, SlotState.BACKING_OFF},
    "back_off": {SlotState.EMPTY},
}
"""By call, the states in which it is legal."""

CALLS = {
    "create": ActorSlot.create,
    "load": ActorSlot.load,
    "start": lambda slot: slot.start(ACTOR, 0),
    "start with weights to take": lambda slot: slot.start(ACTOR, None),
    "update": ActorSlot.update,
    "serve": lambda slot: slot.serve(1),
    "sleep": ActorSlot.sleep,
    "wake": ActorSlot.wake,
    "fail": lambda slot: slot.fail(ACTOR, RuntimeError("illegal memory access")),
    "empty": ActorSlot.empty,
    "back_off": lambda slot: slot.back_off("its engine died"),
}


def in_a_loop(claim):
    """Run `claim(slot)`, a function or a coroutine function, in virtual time."""

    async def main():
        result = claim(ActorSlot(3, ActorsConfig(max_restarts=2, restart_window_seconds=500)))
        return await result if asyncio.iscoroutine(result) else result

    return run_in_virtual_time(main())


@pytest.mark.parametrize("state", SlotState)
@pytest.mark.parametrize("call", LEGAL)
def test_a_transition_is_legal_in_its_states_alone_and_an_illegal_one_names_the_slot_and_both_states(state, call):
    def claim(slot):
        for step in TO[state]:
            CALLS[step](slot)
        assert slot.state is state
        if state in LEGAL[call]:
            CALLS[call](slot)
            return
        with pytest.raises(ValueError, match=f"slot 3 is {state.name}: it cannot become [A-Z_]+"):
            CALLS[call](slot)
        assert slot.state is state

    in_a_loop(claim)


def test_an_actor_that_takes_new_weights_still_serves_and_one_that_takes_its_first_does_not():
    def claim(slot):
        for step in TO[SlotState.UPDATING]:
            CALLS[step](slot)
        assert (slot.serves, slot.free_capacity) == (False, 0)
        slot.serve(4)
        assert (slot.state, slot.version, slot.serves, slot.can_validate) == (SlotState.SERVING, 4, True, True)
        slot.update()
        assert (slot.state, slot.version, slot.serves, slot.can_validate) == (SlotState.UPDATING, 4, True, False)
        slot.serve(5)
        slot.sleep()
        assert (slot.state, slot.version, slot.serves, slot.can_validate) == (SlotState.ASLEEP, 5, True, False)
        assert slot.description == "sleeps while the learner has its GPU"

    in_a_loop(claim)


def test_a_broken_actor_stays_broken_whatever_its_other_calls_return():
    async def claim(slot):
        for step in TO[SlotState.BROKEN]:
            CALLS[step](slot)
        slot.update()
        slot.serve(1)
        slot.fail(ACTOR, RuntimeError("a second failure"))
        assert (slot.state, slot.serves, slot.free_capacity) == (SlotState.BROKEN, False, 0)
        with pytest.raises(RuntimeError, match="illegal memory access"):
            await slot.failure()

    in_a_loop(claim)


def test_a_failure_of_an_actor_that_was_replaced_is_none_of_its_successor():
    def claim(slot):
        for step in ("create", "load", "start", "empty", "create", "load"):
            CALLS[step](slot)
        slot.start(ScriptedActor(always("right")), 0)
        CALLS["fail"](slot)
        assert slot.state is SlotState.SERVING

    in_a_loop(claim)


def test_a_removed_actor_leaves_its_samples_and_no_reservation():
    async def claim(slot):
        for step in TO[SlotState.SERVING]:
            CALLS[step](slot)
        group = Group.create(0, prompts(1)[0], 2, sampled_at=0.0, policy_version=0)
        slot.reserve()
        slot.isolate(group)
        slot.begin_request()
        request = asyncio.create_task(asyncio.sleep(100))
        slot.running[group.samples[1]] = request
        assert slot.empty() == [group.samples[1]]
        assert (slot.actor, slot.version, slot.reserved, slot.suspect, slot.running) == (None, None, False, None, {})
        assert slot.idle.is_set()
        with pytest.raises(asyncio.CancelledError):
            await request

    in_a_loop(claim)


def test_pauses_double_and_beyond_the_budget_last_until_the_oldest_loss_is_over():
    async def claim(slot):
        pauses = []
        for _ in range(4):
            pauses.append(slot.back_off_seconds)
            for step in ("create", "empty", "back_off"):
                CALLS[step](slot)
            await asyncio.sleep(10)
        assert pauses == [0, 0, 1, pytest.approx(500 - 30)]
        assert slot.is_over_budget
        await asyncio.sleep(1000)
        assert (slot.is_over_budget, slot.back_off_seconds) == (False, 0)

    in_a_loop(claim)
    assert MAX_BACK_OFF == 60


def test_the_description_of_a_slot_names_the_last_loss_until_an_engine_runs_again():
    def claim(slot):
        for step in TO[SlotState.BACKING_OFF]:
            CALLS[step](slot)
        assert slot.description == "was lost (its engine died)"
        for step in ("create", "load"):
            CALLS[step](slot)
            assert slot.description == "was lost (its engine died)"
        CALLS["start"](slot)
        assert slot.description == "generates 0 samples"

    in_a_loop(claim)


def test_the_time_in_which_an_engine_decodes_is_that_without_idleness():
    """It generates from second 10 to 25 and from 40 on; readings are taken at 30 and 50."""

    async def lives(slot):
        slot.create()
        slot.load()
        slot.start(ACTOR, 0)
        await asyncio.sleep(10)
        slot.begin_request()
        await asyncio.sleep(15)
        slot.finish_training()
        await asyncio.sleep(5)
        slot.observe(EngineStatistics(generated_tokens=300, running=0, gpu="NVIDIA L4"))
        await asyncio.sleep(10)
        slot.begin_request()
        await asyncio.sleep(10)
        slot.observe(EngineStatistics(generated_tokens=400, running=6, gpu="NVIDIA L4"))
        return slot.take_decoding(), slot.take_decoding()

    taken, rest = in_a_loop(lives)
    assert (taken.tokens, taken.busy_seconds, taken.gpu) == (400, pytest.approx(25), "NVIDIA L4")
    assert taken.sequence_seconds == pytest.approx(15 * 1 + 10 * 3)
    assert (rest.tokens, rest.busy_seconds) == (0, 0)
