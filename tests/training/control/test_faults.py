"""Faults that look like something else: whose fault a loss is, what is slow and not hung, and what ends a run."""

import asyncio
import logging
from collections import Counter
from itertools import pairwise

import pytest

from tasks.generation.interface import EngineOptionsError, EngineStatistics
from tasks.recipe.run import ActorsConfig
from tasks.storage.tensor_digest import Contents
from tasks.training.actors.fleet import Fleet, FleetCollaborators
from tasks.training.actors.process import ActorLostError
from tasks.training.actors.weights import WeightStore
from tasks.training.control.controller import LostGroupsError, NoSignalError
from tasks.training.groups.window import Window
from tasks.training.learner.client import WrittenWeights
from tasks.training.runtime.timeouts import Limit, StalledError, wait_within
from tests.training.stand_ins import (
    RecordingLearner,
    Run,
    ScriptedActor,
    TableJudge,
    always,
    config,
    never,
    prompts,
    run_in_virtual_time,
    settle,
)


class Counted(ScriptedActor):
    """Says of itself that it makes no token."""

    async def statistics(self):
        return EngineStatistics(generated_tokens=1)


# Slow, and not hung


def test_an_engine_that_takes_weights_for_long_makes_no_token_and_does_not_hang(tmp_path):
    async def long(actor, _version):
        actor.busy = True
        await asyncio.sleep(400)
        actor.busy = False

    async def slow(actor, _prompt):
        await asyncio.sleep(50)
        while getattr(actor, "busy", False):
            await asyncio.sleep(1)
        return ["right", "wrong"]

    actors = ActorsConfig(hang_seconds=100, update_timeout_seconds=600)
    run = Run(tmp_path, config(steps=3, async_steps=2, actors=actors, stall_seconds=1000), prompts(50))
    run.make_actor = lambda _: Counted(slow, on_update=long)
    run.play()
    assert len(run.actors) == 1


def test_an_update_that_takes_too_long_is_a_loss(tmp_path):
    async def first_actor_never_does(actor, _version):
        if actor is run.actors[0]:
            await never()

    async def slow(_actor, _prompt):
        await asyncio.sleep(10)
        return ["right", "wrong"]

    options = config(steps=6, actors=ActorsConfig(update_timeout_seconds=20), stall_seconds=1000)
    run = Run(tmp_path, options, prompts(50))
    run.make_actor = lambda _: ScriptedActor(slow, on_update=first_actor_never_does)
    run.play()
    assert run.attempts == [(0, 0), (0, 1)]


def test_what_waits_says_so_every_minute_and_what_makes_progress_has_no_limit(caplog):
    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(StalledError, match=r"the controller waits for the judge; no progress for patience = 150"):
            await wait_within(never(), "the controller waits for the judge", Limit(150, "patience"))
        logged = [record.getMessage() for record in caplog.records]
        started = loop.time()
        await wait_within(
            asyncio.sleep(1000), "slow", Limit(100, "patience"), progress=lambda: int((loop.time() - started) / 50)
        )
        return logged

    with caplog.at_level(logging.WARNING):
        logged = run_in_virtual_time(main())
    assert logged == [f"the controller waits for the judge, since {seconds} s" for seconds in (60, 120)]


# Whose fault


def test_a_place_that_ends_all_its_actors_convicts_no_prompt(tmp_path):
    """A GPU that is broken: whatever is generated there is lost, and is generated elsewhere."""

    def make_actor(index):
        async def answer(_actor, _prompt):
            await asyncio.sleep(1 if index == 0 else 20)
            if index == 0:
                raise ActorLostError("uncorrectable ECC error")
            return ["right", "wrong"]

        return ScriptedActor(answer)

    actors = ActorsConfig(count=3, prefetch=0, engine={"max_num_seqs": 2}, max_restarts=100)
    options = config(steps=30, async_steps=10, max_staleness=100, actors=actors, stall_seconds=1000)
    run = Run(tmp_path, options, prompts(400), make_actor=make_actor).play()
    assert not run.rows("failed")
    assert sum(index == 0 for index, _ in run.attempts) > 3


def test_an_engine_that_cannot_start_again_is_a_loss_and_no_mistake_of_the_options(tmp_path):
    class Starting(ScriptedActor):
        async def start(self):
            await super().start()
            if self in run.actors[1:2]:
                raise EngineOptionsError("vLLM does not start: Input/output error")

    async def the_first_dies(actor, prompt):
        await settle()
        if actor is run.actors[0] and prompt == 3:
            raise ActorLostError("gone")
        return ["right", "wrong"]

    run = Run(tmp_path, config(), prompts(50), make_actor=lambda _: Starting(the_first_dies))
    run.play()
    assert run.attempts == [(0, 0), (0, 1), (0, 2)]


def test_options_with_which_no_engine_ever_started_end_the_run_at_once(tmp_path):
    class Refused(ScriptedActor):
        async def start(self):
            raise EngineOptionsError("max_model_len")

    run = Run(tmp_path, config(), prompts(50), make_actor=lambda _: Refused(run.answer))
    with pytest.raises(EngineOptionsError):
        run.play()
    assert len(run.actors) == 1


def test_engines_that_refuse_their_first_request_end_the_run_at_once(tmp_path):
    async def refuses(actor, prompt):
        await settle()
        raise EngineOptionsError("vLLM does not serve the model")

    run = Run(tmp_path, config(), prompts(50), make_actor=lambda _: ScriptedActor(refuses))
    with pytest.raises(EngineOptionsError, match="does not serve"):
        run.play()
    assert len(run.actors) == 1


def test_an_engine_that_refuses_its_first_request_after_another_has_answered_is_a_loss(tmp_path):
    async def the_second_refuses(actor, prompt):
        await settle()
        if actor is run.actors[0] and prompt == 3:
            raise ActorLostError("gone")
        if actor in run.actors[1:2]:
            raise EngineOptionsError("vLLM does not serve the model")
        return ["right", "wrong"]

    run = Run(tmp_path, config(), prompts(50), make_actor=lambda _: ScriptedActor(the_second_refuses))
    run.play()
    assert run.attempts == [(0, 0), (0, 1), (0, 2)]


def test_a_run_with_one_place_at_its_limit_goes_on_while_the_others_are_only_being_replaced(tmp_path):
    dying = {1: 20.0}

    def make_actor(index):
        class Timed(ScriptedActor):
            async def start(self):
                await asyncio.sleep(10)
                await super().start()

        async def answer(_actor, _prompt):
            await asyncio.sleep(3)
            if index == 0 or asyncio.get_running_loop().time() > dying.get(index, 1e9):
                dying.pop(index, None)
                raise ActorLostError("gone")
            return ["right", "wrong"]

        return Timed(answer)

    options = config(steps=40, actors=ActorsConfig(count=2, max_restarts=1), stall_seconds=1000)
    run = Run(tmp_path, options, prompts(200), make_actor=make_actor).play()
    assert Counter(index for index, _ in run.attempts) == {0: 2, 1: 2}


def test_where_no_engine_may_be_replaced_none_is(tmp_path):
    async def dies_in_the_first(actor, prompt):
        await settle()
        if actor is run.actors[0] and prompt == 3:
            raise ActorLostError("gone")
        return ["right", "wrong"]

    run = Run(tmp_path, config(actors=ActorsConfig(count=2, max_restarts=0)), prompts(50), dies_in_the_first)
    run.play()
    assert run.attempts == [(0, 0), (1, 0)]
    alone = config(actors=ActorsConfig(max_restarts=0))
    run = Run(tmp_path / "alone", alone, prompts(50), dies_in_the_first)
    run.folder.mkdir()
    with pytest.raises(ActorLostError, match=r"max_restarts = 0"):
        run.play()


def test_a_loss_is_followed_by_a_pause_that_grows_and_a_full_budget_by_its_end(tmp_path):
    started = []

    class Watched(ScriptedActor):
        async def start(self):
            started.append(asyncio.get_running_loop().time())

    async def answer(_actor, _prompt):
        if len(started) < 5:
            raise ActorLostError("gone")
        return ["right", "wrong"]

    def make_actor(index):
        return Watched(answer) if index == 0 else ScriptedActor(slowly)

    async def slowly(_actor, _prompt):
        await asyncio.sleep(100)
        return ["right", "wrong"]

    one_at_a_time = {"max_num_seqs": 1}
    actors = ActorsConfig(count=2, prefetch=0, engine=one_at_a_time, max_restarts=3, restart_window_seconds=500)
    options = config(steps=8, async_steps=20, max_staleness=20, actors=actors, stall_seconds=1000)
    Run(tmp_path, options, prompts(200), make_actor=make_actor).play()
    pauses = [round(after - before) for before, after in pairwise(started)]
    assert pauses[:3] == [0, 1, 2]
    assert 490 <= started[4] - started[0] <= 501  # the fourth loss is beyond the budget, until the first is over


def test_a_place_whose_actor_is_lost_is_reserved_for_nobody(tmp_path):
    """Else a suspect group waits for it, however long it rests, while other engines are idle."""

    async def main():
        fleet = Fleet(
            config(),
            Window(lambda: None),
            FleetCollaborators(ScriptedActor, None, WeightStore(tmp_path)),
            receiver=None,
        )
        [slot] = fleet.slots
        slot.create()
        slot.reserve()
        slot.empty()
        return slot.reserved

    assert not run_in_virtual_time(main())


def test_rounds_that_nobody_could_judge_are_not_prompts_without_signal(tmp_path):
    class Away(TableJudge):
        async def score(self, *_about):
            raise_unjudged()

    def raise_unjudged():
        from tasks.training.actors.rewards import JudgementError

        raise JudgementError("the judge does not answer")

    dynamic = config(resampling={"kind": "dynamic", "max_rounds": 3}, async_steps=0, max_staleness=0)
    with pytest.raises(LostGroupsError, match=r"in 3 rounds \(resampling\.max_rounds\)"):
        Run(tmp_path / "away", dynamic, prompts(50), judge=Away()).play()
    with pytest.raises(NoSignalError, match=r"in 3 rounds"):
        Run(tmp_path / "equal", dynamic, prompts(50), always("right", "right")).play()


# Taking turns


def test_taking_turns_a_batch_is_shared_by_all_engines(tmp_path):
    async def later(actor, _version):
        await asyncio.sleep(run.actors.index(actor))

    async def answer(_actor, _prompt):
        await asyncio.sleep(10)
        return ["right", "wrong"]

    options = config(steps=3, groups_per_step=8, async_steps=0, max_staleness=0, actors=ActorsConfig(count=4))
    run = Run(tmp_path, options.model_copy(update={"stall_seconds": 1000}), prompts(200))
    run.make_actor = lambda _: ScriptedActor(answer, on_update=later)
    run.play()
    assert [len(actor.sampled) for actor in run.actors[1:]] == [4, 4, 4]  # at the start the first one there had all


# Updates of a batch that are not finite


def test_of_several_updates_on_a_batch_one_that_is_not_finite_is_left_out_and_counted(tmp_path):
    class Once(RecordingLearner):
        async def step(self, sequences, denominator, learning_rate):
            report = await super().step(sequences, denominator, learning_rate)
            if len(self.steps) == 2:
                report.metrics["loss"] = float("nan")
            return report

        async def restart(self):
            self.version = 0

        async def write_weights(self, path):
            path.write_text("weights 1")
            return WrittenWeights("", Contents(1, "weights 1"))

    options = config(steps=1, groups_per_step=4, updates={"minibatches": 4})
    run = Run(tmp_path, options, prompts(4), learner=Once()).play()
    [row] = run.metrics()
    assert row["updates_left_out"] == 1
    assert len(run.rows("trained")) == 4
    assert run.learner.version == 3


# Checkpoints


def test_a_disk_that_does_not_answer_ends_the_run_and_an_upload_that_is_slow_does_not(tmp_path, caplog, monkeypatch):
    import tasks.training.records.checkpoint as module

    async def slow(_self, _checkpoint, _superseded):
        await asyncio.sleep(500)

    monkeypatch.setattr(module.Checkpoints, "settle", slow)
    options = config(steps=2, checkpoint_every=1, stall_seconds=100)
    Run(tmp_path / "upload", options, prompts(50)).play()
    assert "checkpoints older than 1 are being uploaded, since 480 s" in caplog.text

    async def hangs(_self, _partial):
        await never()

    monkeypatch.setattr(module.Checkpoints, "complete", hangs)
    with pytest.raises(StalledError, match=r"the checkpoint of version 1 is put on the disk; .* stall_seconds = 100"):
        Run(tmp_path / "disk", options, prompts(50)).play()


# Idle


def test_idle_is_the_share_of_the_time_in_which_an_actor_had_nothing_to_generate(tmp_path):
    """Taking turns: 10 s of generating, 30 s of learning."""

    async def answer(_actor, _prompt):
        await asyncio.sleep(10)
        return ["right", "wrong"]

    options = config(steps=3, async_steps=0, max_staleness=0, stall_seconds=1000)
    learner = RecordingLearner(lambda _: asyncio.sleep(30))
    rows = Run(tmp_path, options, prompts(50), answer, learner).play().metrics()
    assert [(row["actors_idle"], row["learner_idle"]) for row in rows] == [
        (pytest.approx(0.75, abs=1e-3), pytest.approx(0.25, abs=1e-3))
    ] * 3
