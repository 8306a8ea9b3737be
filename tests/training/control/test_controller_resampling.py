"""What takes the place of a group that teaches nothing, and what it means that actors and learner take turns."""

import asyncio

import pytest

from tasks.recipe.run import ActorsConfig
from tasks.training.actors.process import ActorLostError
from tasks.training.control.controller import NoSignalError
from tests.training.stand_ins import (
    RecordingLearner,
    Run,
    ScriptedActor,
    always,
    config,
    ids,
    prompts,
    settle,
)


def taking_turns(**options):
    """Two groups of two samples a step; actors and learner take turns."""
    return config(**{"async_steps": 0, **options})


def in_rounds(multiplier, **options):
    return taking_turns(resampling={"kind": "dynamic", "batch_multiplier": multiplier, "max_rounds": 3}, **options)


async def only_fourths_teach(_actor, prompt):
    return ["right", "wrong"] if prompt % 4 == 0 else ["right", "right"]


def test_rounds_of_prompts_are_sampled_until_enough_groups_teach(tmp_path):
    run = Run(tmp_path, in_rounds(1.5, steps=2), prompts(50), only_fourths_teach).play()
    # rounds of 3: {1 2 3}, {4 5 6}, {7 8 9}; then {10 11 12}, {13 14 15}, {16 17 18}
    assert [step.prompts for step in run.learner.steps] == [[4, 8], [12, 16]]
    assert [row["sampling_rounds"] for row in run.metrics()] == [3, 3]
    assert run.actors[0].sampled == list(range(1, 19))


def test_what_a_round_gives_beyond_the_batch_is_the_next_batchs(tmp_path):
    run = Run(tmp_path, in_rounds(2, steps=4), prompts(50)).play()
    assert [step.prompts for step in run.learner.steps] == [[1, 2], [3, 4], [5, 6], [7, 8]]
    assert [row["sampling_rounds"] for row in run.metrics()] == [1, 0, 1, 0]
    assert [row["staleness"] for row in run.metrics()] == [0, 1, 0, 1]


def test_where_nothing_stale_is_wanted_the_surplus_of_a_round_is_sampled_again(tmp_path):
    run = Run(tmp_path, in_rounds(2, steps=2, max_staleness=0), prompts(50)).play()
    assert [step.prompts for step in run.learner.steps] == [[1, 2], [3, 4]]
    assert [row["sampling_rounds"] for row in run.metrics()] == [1, 1]
    assert ids(run.rows("stale")) == [3, 4]
    assert all(row["staleness_max"] == 0 for row in run.metrics())


@pytest.mark.parametrize(("metric", "trained"), [("reward", [1, 2]), ("passed", [3, 4])])
def test_a_round_keeps_what_differs_in_reward_or_in_being_right(tmp_path, metric, trained):
    async def first_two_are_never_right(_actor, prompt):
        return ["half", "wrong"] if prompt <= 2 else ["right", "wrong"]

    options = taking_turns(steps=1, resampling={"kind": "dynamic", "batch_multiplier": 2, "metric": metric})
    run = Run(tmp_path, options, prompts(50), first_two_are_never_right).play()
    assert run.learner.steps[0].prompts == trained
    assert {row["detail"] for row in run.rows("zero_variance")} <= {"no response passes"}


@pytest.mark.parametrize(("metric", "trained"), [("reward", [3, 4]), ("score", [1, 2])])
def test_a_round_decides_on_scores_before_or_after_shaping(tmp_path, metric, trained):
    async def first_two_differ_before_shaping_alone(_actor, prompt):
        return ["half", "wrong"] if prompt <= 2 else ["right", "wrong"]

    options = taking_turns(
        steps=1,
        resampling={"kind": "dynamic", "batch_multiplier": 2, "metric": metric},
        objective={"shaping": {"stop_properly": 0.0}},
    )
    run = Run(tmp_path, options, prompts(50), first_two_differ_before_shaping_alone).play()
    assert ids(run.rows("trained")) == trained


def test_rounds_that_find_too_little_end_the_run_with_the_counts(tmp_path):
    run = Run(tmp_path, in_rounds(1), prompts(50), only_fourths_teach)
    message = r"step 0: 5 groups were dropped while 1 of 2 .* in 3 rounds \(resampling\.max_rounds\)"
    with pytest.raises(NoSignalError, match=message):
        run.play()
    assert run.actors[0].sampled == [1, 2, 3, 4, 5, 6]


def test_what_an_actor_loses_in_a_round_is_generated_by_another(tmp_path):
    async def second_prompt_kills_its_actor_once(actor, prompt):
        await settle()
        if prompt == 2 and actor is run.actors[0]:
            raise ActorLostError("gone")
        return ["right", "wrong"]

    run = Run(tmp_path, in_rounds(1, steps=2), prompts(50), second_prompt_kills_its_actor_once)
    run.play()
    assert len(run.actors) == 2
    assert ids(run.rows("trained")) == [1, 2, 3, 4]
    assert [row["sampling_rounds"] for row in run.metrics()] == [1, 1]


def test_without_resampling_every_group_is_trained_on(tmp_path):
    run = Run(tmp_path, taking_turns(resampling={"kind": "none"}), prompts(50), only_fourths_teach).play()
    assert ids(run.rows("trained")) == [1, 2, 3, 4, 5, 6]
    assert [row["zero_variance"] for row in run.metrics()] == [1.0, 0.5, 1.0]
    # what has no gradient is not computed, but for one response where nothing else is left; it counts all the same
    assert [{s.advantage for s in step.sequences} for step in run.learner.steps] == [{0.0}, {0.5, -0.5}, {0.0}]
    assert [len(step.sequences) for step in run.learner.steps] == [1, 2, 1]
    assert len({step.denominator for step in run.learner.steps}) == 1


@pytest.mark.parametrize(
    "objective",
    [
        {"kl": {"beta": 0.1}},
        {"entropy_coefficient": 0.1},
        {"surrogate": "dppo", "correction": {"kind": "none"}},
    ],
)
def test_what_has_no_advantage_is_computed_where_a_penalty_or_a_bonus_acts_on_it(tmp_path, objective):
    options = taking_turns(steps=1, resampling={"kind": "none"}, objective=objective)
    run = Run(tmp_path, options, prompts(50), only_fourths_teach).play()
    assert run.learner.steps[0].prompts == [1, 2]


def test_without_resampling_a_group_that_cannot_be_judged_is_replaced(tmp_path):
    async def first_is_unjudgeable(_actor, prompt):
        return ["right", "?"] if prompt == 1 else ["right", "right"]

    run = Run(tmp_path, taking_turns(steps=1, resampling={"kind": "none"}), prompts(50), first_is_unjudgeable).play()
    assert ids(run.rows("trained")) == [2, 3]
    assert ids(run.rows("failed")) == [1]


def test_in_turns_nothing_is_sampled_while_the_learner_works_and_all_of_a_batch_by_the_policy_it_trains(tmp_path):
    sampled = []

    async def let_the_actors_work(_):
        await settle()
        sampled.append(sum(len(actor.sampled) for actor in run.actors))

    options = taking_turns(actors=ActorsConfig(count=2))
    run = Run(tmp_path, options, prompts(50), learner=RecordingLearner(let_the_actors_work))
    run.play()
    assert sampled == [2, 4, 6]
    assert all(row["staleness_max"] == 0 for row in run.metrics())
    began = sorted((entry[1], entry[2]) for actor in run.actors for entry in actor.diary if entry[0] == "generate")
    assert began == [(1, 0), (2, 0), (3, 1), (4, 1), (5, 2), (6, 2)]


def test_a_batch_in_turns_is_the_same_whatever_is_answered_first(tmp_path):
    def batches(folder, delay):
        async def answer(_actor, prompt):
            for _ in range(delay(prompt)):
                await asyncio.sleep(0)
            return ["right", "right"] if prompt == 2 else ["right", "wrong"]

        folder.mkdir()
        options = taking_turns(groups_per_step=4, steps=2)
        steps = Run(folder, options, prompts(50), answer).play().learner.steps
        return [[s.prompt_ids[0] for s in step.sequences] for step in steps]

    first = batches(tmp_path / "first", lambda prompt: prompt * 10)
    assert first == batches(tmp_path / "second", lambda prompt: 100 - prompt * 10)
    assert first == [[1, 1, 3, 3, 4, 4, 5, 5], [6, 6, 7, 7, 8, 8, 9, 9]]


def test_a_deterministic_run_draws_every_group_from_a_seed_of_its_own(tmp_path):
    seeds = {}

    class SeededActor(ScriptedActor):
        async def generate(self, prompt_ids, sampling, seed):
            seeds.setdefault(prompt_ids[0], []).append(seed)
            return await super().generate(prompt_ids, sampling, seed)

    one_at_a_time = ActorsConfig(engine={"max_num_seqs": 1})

    def drawn(folder, **options):
        seeds.clear()
        folder.mkdir()
        options = taking_turns(actors=one_at_a_time, **options)
        Run(folder, options, prompts(6), make_actor=lambda _: SeededActor(always("right", "wrong"))).play()
        return {prompt: tuple(drawn) for prompt, drawn in seeds.items()}

    first = drawn(tmp_path / "first", deterministic=True)
    assert len({seed for seeds in first.values() for seed in seeds}) == 12
    assert drawn(tmp_path / "second", deterministic=True) == first
    assert not set(drawn(tmp_path / "third", deterministic=True, seed=1).values()) & set(first.values())
    assert set(drawn(tmp_path / "fourth").values()) == {(None, None)}
