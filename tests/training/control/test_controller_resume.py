"""What the controller promises of a run that was interrupted, shown with stand-ins for actors, learner and judge."""

import json
from collections import Counter

import pytest

from tasks.training.groups.group import Stage
from tests.training.stand_ins import (
    RecordingLearner,
    Run,
    TableJudge,
    config,
    ids,
    never,
    numbers,
    prompts,
    saved_groups,
    settle,
)


class CrashError(Exception):
    """Stands for the death of the process."""


def crashed_at_the_fourth_step(folder, **options):
    async def crash(step):
        await settle()  # the window fills up
        if step == 3:
            raise CrashError

    options = config(steps=6, checkpoint_every=1, async_steps=2, **options)
    run = Run(folder, options, prompts(100), learner=RecordingLearner(crash))
    with pytest.raises(CrashError):
        run.play()
    return run


def newest(folder):
    """The newest checkpoint, and its state."""
    checkpoint = sorted((folder / "checkpoints").iterdir())[-1]
    return checkpoint, json.loads((checkpoint / "state.json").read_text())


def test_a_run_goes_on_from_its_checkpoint_and_trains_nothing_twice(tmp_path):
    before = crashed_at_the_fourth_step(tmp_path)
    checkpoint, state = newest(tmp_path)
    ready, _ = saved_groups(checkpoint, before.prompts)
    assert state["version"] == 3
    assert ready
    after = Run(tmp_path, before.config, before.prompts).play()

    assert [row["step"] for row in after.metrics()] == list(range(6))
    assert [len(before.learner.steps), len(after.learner.steps)] == [4, 3]  # the fourth was lost, and is taken again
    trained = after.rows("trained")
    assert Counter(row["step"] for row in trained) == dict.fromkeys(range(6), 2)
    assert len(set(numbers(after.rows()))) == len(after.rows())
    assert len(set(ids(trained))) == 12  # no prompt comes twice within its epoch
    # finished groups were paid for: they are trained, and their prompts are not sampled again
    assert {group.number for group in ready} <= set(numbers(trained))
    assert not {int(group.prompt.prompt_id[1:]) for group in ready} & set(after.actors[0].sampled)
    # nothing in the stream is skipped
    assert sorted(ids(after.rows())) == list(range(1, len(after.rows()) + 1))


def test_after_a_resume_the_actors_take_the_restored_weights_first(tmp_path):
    before = crashed_at_the_fourth_step(tmp_path)
    after = Run(tmp_path, before.config, before.prompts).play()
    assert [entry[:2] for entry in after.actors[0].diary[:2]] == [("start",), ("update", 3)]
    assert all(version >= 3 for kind, *_, version in after.actors[0].diary[1:] if kind == "generate")


def crashed_with_two_groups_in_flight_at_the_checkpoint(folder):
    async def slow_from_the_fifth_prompt_on(_actor, prompt):
        if prompt > 4:
            await never()
        return ["right", "wrong"]

    async def crash(step):
        await settle()
        if step == 1:
            raise CrashError

    options = config(steps=4, checkpoint_every=1, async_steps=2)
    run = Run(folder, options, prompts(100), slow_from_the_fifth_prompt_on, RecordingLearner(crash))
    with pytest.raises(CrashError):
        run.play()
    _, in_flight = saved_groups(newest(folder)[0], run.prompts)
    assert [group.prompt.prompt_id for group in in_flight] == ["p5", "p6"]
    return run


def test_prompts_in_flight_at_the_checkpoint_come_again_first(tmp_path):
    before = crashed_with_two_groups_in_flight_at_the_checkpoint(tmp_path)
    after = Run(tmp_path, before.config, before.prompts).play()
    assert after.actors[0].sampled[:3] == [5, 6, 7]
    assert ids(after.rows("trained")) == list(range(1, 9))


def test_groups_in_flight_at_the_checkpoint_go_on_under_their_numbers(tmp_path):
    before = crashed_with_two_groups_in_flight_at_the_checkpoint(tmp_path)
    after = Run(tmp_path, before.config, before.prompts).play()
    assert numbers(after.rows()) == list(range(len(after.rows())))
    assert [row["group"] for row in after.rows("trained") if row["prompt_id"] in ("p5", "p6")] == [4, 5]


def test_responses_that_were_finished_at_the_checkpoint_are_judged_after_it_and_not_generated_again(tmp_path):
    async def crash(step):
        await settle()
        if step == 1:
            raise CrashError

    class PatientJudge(TableJudge):
        async def score(self, verifier, response, ground_truth, messages):
            if response == "half":
                await never()
            return await super().score(verifier, response, ground_truth, messages)

    async def answers(_actor, prompt):
        return ["half", "wrong"] if prompt == 5 else ["right", "wrong"]

    options = config(steps=4, checkpoint_every=1, async_steps=2)
    run = Run(tmp_path, options, prompts(100), answers, RecordingLearner(crash), judge=PatientJudge())
    with pytest.raises(CrashError):
        run.play()
    _, in_flight = saved_groups(newest(tmp_path)[0], run.prompts)
    stages = {group.prompt.prompt_id: [sample.stage for sample in group.samples] for group in in_flight}
    assert stages["p5"] == [Stage.JUDGING, Stage.JUDGED]
    after = Run(tmp_path, options, run.prompts, answers).play()
    assert 5 not in after.actors[0].sampled
    [row] = [row for row in after.rows("trained") if row["prompt_id"] == "p5"]
    assert row["scores"] == [0.5, 0.0]


def test_a_finished_run_that_is_started_again_trains_nothing_more(tmp_path):
    first = Run(tmp_path, config(), prompts(50)).play()
    again = Run(tmp_path, config(), first.prompts).play()
    assert again.learner.steps == []
    assert [row["step"] for row in again.metrics()] == [0, 1, 2]


def test_a_checkpoint_of_another_mixture_is_refused(tmp_path):
    before = crashed_at_the_fourth_step(tmp_path)
    with pytest.raises(ValueError, match="the mixture lacks"):
        Run(tmp_path, before.config, prompts(3)).play()
