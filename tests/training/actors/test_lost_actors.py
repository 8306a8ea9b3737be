"""Actors that are lost: they are replaced, and cost what they had not finished."""

import asyncio
from collections import Counter

import pytest

from tasks.generation.interface import EngineStatistics, RequestRefusedError
from tasks.machine.memory_limit import MemoryLimitError, ShortOfMemoryError
from tasks.recipe.run import ActorsConfig
from tasks.training.actors.process import ActorLostError
from tests.training.stand_ins import Run, ScriptedActor, config, ids, never, numbers, prompts, settle


def losing(run, when, error="its engine died"):
    """An actor factory: an actor's `when(actor, prompt)` true means that it is lost."""

    async def answer(actor, prompt):
        await asyncio.sleep(0)
        if when(actor, prompt):
            raise ActorLostError(error)
        return ["right", "wrong"]

    return lambda _index: ScriptedActor(answer)


def test_a_lost_actor_is_replaced_and_what_it_had_not_finished_is_generated_again(tmp_path):
    def first_actor_dies_under_its_first_weights(actor, _prompt):
        return actor is run.actors[0] and actor.version >= 1

    run = Run(tmp_path, config(steps=4), prompts(50))
    run.make_actor = losing(run, first_actor_dies_under_its_first_weights)
    run.play()
    lost, replacement = run.actors
    assert run.attempts == [(0, 0), (0, 1)]
    assert lost.killed
    assert not run.rows("failed")
    again = set(lost.sampled) & set(replacement.sampled)
    assert again
    assert replacement.sampled[0] == min(again)
    assert ids(run.rows("trained")) == list(range(1, 9))
    assert numbers(run.rows()) == list(range(len(run.rows())))
    assert sum(row["actors_lost"] for row in run.metrics()) == 1
    # it starts from the initial checkpoint, so the learner's weights come first
    begin, first, second = replacement.diary[:3]
    assert (begin[0], first[0], second[0]) == ("start", "update", "generate")
    assert first[1] == second[2] >= 1


def test_an_actor_that_is_lost_while_it_takes_weights_costs_no_group(tmp_path):
    async def breaks_once(actor, _version):
        if actor is run.actors[0]:
            raise ActorLostError("weight update failed")

    async def slow_from_the_third_prompt_on(actor, prompt):
        if actor is run.actors[0] and prompt >= 3:
            await never()
        return ["right", "wrong"]

    run = Run(tmp_path, config(steps=2), prompts(50))
    run.make_actor = lambda _: ScriptedActor(slow_from_the_third_prompt_on, on_update=breaks_once)
    run.play()
    assert ids(run.rows("trained")) == [1, 2, 3, 4]
    assert {row["fate"] for row in run.rows()} <= {"trained", "unused"}


def test_only_what_the_lost_actor_had_in_hand_is_generated_again(tmp_path):
    async def second_actor_dies_once(actor, _prompt):
        await settle()
        if actor is run.actors[1]:
            raise ActorLostError("gone")
        return ["right", "wrong"]

    run = Run(tmp_path, config(steps=3, actors=ActorsConfig(count=2)), prompts(50), second_actor_dies_once)
    run.play()
    asked = Counter(prompt for actor in run.actors for prompt in actor.sampled)
    assert len(run.actors) == 3
    assert {prompt for prompt, times in asked.items() if times == 2} == set(run.actors[1].sampled)
    assert {actor for row in run.rows("trained") for actor in row["actors"]} >= {0}


def test_a_finished_response_outlives_its_actor(tmp_path):
    async def answers_one_and_dies(actor, _prompt):
        if actor is not run.actors[0]:
            return ["wrong", "wrong"]
        await settle()
        return ["right", "right"]

    class DiesBeforeItsSecond(ScriptedActor):
        async def generate(self, prompt_ids, sampling, seed):
            completion = await super().generate(prompt_ids, sampling, seed)
            if self is run.actors[0] and self.unanswered[prompt_ids[0]] == []:
                self.finished = getattr(self, "finished", 0) + 1
                if self.finished == 2:
                    raise ActorLostError("gone")
            return completion

    run = Run(tmp_path, config(steps=1, groups_per_step=1), prompts(1))
    run.make_actor = lambda _: DiesBeforeItsSecond(answers_one_and_dies)
    run.play()
    [row] = run.rows("trained")
    assert row["scores"] == [1.0, 0.0]


def test_a_prompt_that_ends_engines_is_found_out_and_left_out_of_the_run(tmp_path):
    async def the_second_prompt_kills(_actor, prompt):
        await settle()
        if prompt == 2:
            raise ActorLostError("illegal memory access")
        await settle()
        return ["right", "wrong"]

    options = config(steps=6, actors=ActorsConfig(count=2, max_restarts=4))
    run = Run(tmp_path, options, prompts(5), the_second_prompt_kills)
    run.play()
    [row] = run.rows("failed")
    assert (row["prompt_id"], row["detail"]) == ("p2", "its prompt crashes engines: illegal memory access")
    assert sum(2 in actor.sampled for actor in run.actors) == 3  # twice among others, then by itself
    assert run.prompts[1].prompt_id not in {f"p{i}" for i in ids(run.rows("trained"))}


def test_a_request_that_the_engine_refuses_costs_its_group_and_not_the_engine(tmp_path):
    async def refuses_the_first(_actor, prompt):
        if prompt == 1:
            raise RequestRefusedError("the prompt is too long")
        return ["right", "wrong"]

    run = Run(tmp_path, config(), prompts(50), refuses_the_first).play()
    [row] = run.rows("failed")
    assert (row["prompt_id"], row["detail"]) == ("p1", "the prompt is too long")
    assert len(run.actors) == 1


def test_an_engine_that_makes_no_token_hangs_however_many_wait_for_it(tmp_path):
    class Hanging(ScriptedActor):
        async def statistics(self):
            return EngineStatistics(generated_tokens=1)

    async def first_actor_never_answers(actor, _prompt):
        if actor is run.actors[0]:
            await never()
        return ["right", "wrong"]

    run = Run(tmp_path, config(steps=1, actors=ActorsConfig(hang_seconds=100), stall_seconds=1000), prompts(50))
    run.make_actor = lambda _: Hanging(first_actor_never_answers)
    run.play()
    assert len(run.actors) == 2
    assert 100 <= run.metrics()[0]["seconds"] <= 120


def test_an_engine_that_is_slow_but_makes_tokens_is_left_alone(tmp_path):
    class Slow(ScriptedActor):
        async def statistics(self):
            return EngineStatistics(generated_tokens=int(asyncio.get_running_loop().time()))

    async def takes_hours(_actor, _prompt):
        await asyncio.sleep(20_000)
        return ["right", "wrong"]

    options = config(steps=2, actors=ActorsConfig(hang_seconds=100), stall_seconds=30_000)
    run = Run(tmp_path, options, prompts(50), make_actor=lambda _: Slow(takes_hours))
    run.play()
    assert len(run.actors) == 1


def test_more_losses_than_allowed_end_the_run_with_the_number(tmp_path):
    run = Run(tmp_path, config(actors=ActorsConfig(max_restarts=2)), prompts(50))
    run.make_actor = losing(run, lambda _actor, _prompt: True, "no GPU memory")
    with pytest.raises(ActorLostError, match=r"actor 0 was lost \(no GPU memory\); .* actors.max_restarts = 2"):
        run.play()
    assert len(run.actors) == 3
    assert all(actor.killed for actor in run.actors)


class Refused(ScriptedActor):
    """An actor whose engine does not start."""

    def __init__(self, reason):
        super().__init__(never)
        self.reason = reason

    async def start(self):
        raise ActorLostError(str(self.reason)) from self.reason


@pytest.mark.parametrize(
    ("starts", "ends"), [("mm", True), ("mdm", False), ("mrm", False), ("m", False), ("dd", False)], ids=str
)
def test_an_engine_that_does_not_start_for_memory_is_tried_once_more_and_not_again(tmp_path, starts, ends):
    """m: short of memory; d: dies for another reason as it starts; r: runs, and dies."""

    async def dies_if_told(actor, _prompt):
        if actor.dies:
            raise ActorLostError("a signal")
        return ["right", "wrong"]

    def make(_index):
        how = starts[len(run.actors)] if len(run.actors) < len(starts) else ""
        if how in ("m", "d"):
            return Refused(ShortOfMemoryError("0.1 of 16 GiB are free") if how == "m" else RuntimeError("a signal"))
        actor = ScriptedActor(dies_if_told)
        actor.dies = how == "r"
        return actor

    run = Run(tmp_path, config(steps=2, actors=ActorsConfig(max_restarts=3)), prompts(50))
    run.make_actor = make
    if ends:
        with pytest.raises(MemoryLimitError, match=r"actor 0 .*0\.1 of 16 GiB are free; this happened in two starts"):
            run.play()
        assert len(run.actors) == 2
        assert all(actor.killed for actor in run.actors)
    else:
        run.play()
        assert len(run.actors) == len(starts) + 1
