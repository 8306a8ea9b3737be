"""Rewards of a whole group in training: asked for once, when all of its responses are generated."""

import asyncio
from dataclasses import replace

import pytest

from tasks.training.actors.rewards import JudgementError
from tasks.training.groups.group import Stage
from tasks.verifiers import Reward, Score, functions
from tasks.verifiers.function_watch import RewardFunctionError
from tasks.verifiers.scores import CannotJudge
from tests.training.stand_ins import (
    RecordingLearner,
    Run,
    ScriptedActor,
    always,
    config,
    never,
    prompts,
    saved_groups,
    settle,
    tasks_left_by_cancelling,
)
from tests.verifiers.test_functions import own, weighted

RANKS = own("ranks") | {"group": True}
BESIDE = weighted(("math", 1.0, "1"), ("function", 0.5, RANKS))
THREE = {"samples": 3, "max_tokens": 8}
VALUES = {"mild": 0.5, "right": 1.0, "wrong!": 0.0}
TEXTS = tuple(VALUES)
"""Of lengths 4, 5 and 6: their ranks are 0, a half and 1."""


class GroupJudge:
    """Calls functions in this process, and looks up what a response has by itself; records both."""

    def __init__(self):
        self.alone, self.groups = [], []

    async def figures(self):
        return {}

    async def score(self, verifier, response, ground_truth, _messages):
        await asyncio.sleep(0)
        if verifier == "function":
            self.groups.append(list(response))
            try:
                return functions.judge(response, ground_truth, None)
            except CannotJudge as reason:
                raise JudgementError(str(reason), reason.failure) from None
        assert ground_truth["partial"]
        self.alone.append(response)
        if response == "?":
            raise JudgementError("no verdict on '?'")
        value = VALUES[response]
        return Score(0.0, value == 1, "", rewards=(Reward("math", 1.0, value),))


def grouped(count, truth=BESIDE):
    verifier = "weighted" if "rewards" in truth else "function"
    return [replace(prompt, verifier=verifier, ground_truth=truth) for prompt in prompts(count)]


def run_of(folder, texts=TEXTS, truth=BESIDE, judge=None, count=9, **options):
    options = {"steps": 1, "groups_per_step": 1, "sampling": THREE, "async_steps": 0, **options}
    return Run(folder, config(**options), grouped(count, truth), always(*texts), judge=judge or GroupJudge())


def advantages(run):
    return [sequence.advantage for sequence in run.learner.steps[0].sequences]


def test_advantages_of_a_ranking_are_those_worked_by_hand(tmp_path):
    run = run_of(tmp_path, truth=RANKS).play()
    # ranks 0, 1/2, 1; their mean is 1/2
    assert advantages(run) == pytest.approx([-0.5, 0.0, 0.5])
    assert run.rows("trained")[0]["scores"] == [0.0, 0.5, 1.0]


def test_a_ranking_beside_a_verifier_adds_its_part_by_weight(tmp_path):
    run = run_of(tmp_path).play()
    # math 0.5, 1, 0; half the ranks are 0, 1/4, 1/2: rewards 1/2, 5/4, 1/2 of mean 3/4
    assert run.rows("trained")[0]["scores"] == [0.5, 1.25, 0.5]
    assert advantages(run) == pytest.approx([-0.25, 0.5, -0.25])


def test_gdpo_normalises_a_ranking_by_itself(tmp_path):
    objective = {"advantage": "group_norm", "reward_aggregation": "normalize_then_sum"}
    run = run_of(tmp_path, objective=objective).play()
    # of both rewards the values 0, 1/2, 1 are normalised alike; the one of the ranking has half the weight
    math, rank = (0.0, 1.0, -1.0), (-1.0, 0.0, 1.0)
    sums = [one + 0.5 * other for one, other in zip(math, rank, strict=True)]
    scale = (sum(value * value for value in sums) / 3) ** 0.5
    assert advantages(run) == pytest.approx([value / scale for value in sums], abs=1e-4)


def test_a_function_is_asked_once_for_all_responses_and_each_is_judged_as_soon_as_it_is_generated(tmp_path):
    judge = GroupJudge()

    class LastWaits(ScriptedActor):
        generated = 0

        async def generate(self, prompt_ids, sampling, seed):
            self.generated += 1
            number = self.generated
            completion = await super().generate(prompt_ids, sampling, seed)
            if number == 3:
                await settle()
                assert sorted(judge.alone) == sorted(TEXTS[:2])
                assert not judge.groups
            return completion

    run = run_of(tmp_path, judge=judge, count=1)
    run.make_actor = lambda _: LastWaits(always(*TEXTS))
    run.play()
    assert judge.groups == [list(TEXTS)]
    assert sorted(judge.alone) == sorted(TEXTS)


def test_a_response_that_fails_by_itself_leaves_the_group_whose_ranks_count_it(tmp_path):
    run = run_of(tmp_path, texts=("mild", "?", "right", "wrong!"), sampling={"samples": 4, "max_tokens": 8}).play()
    [row] = run.rows("trained")
    # lengths 4, 1, 5, 6: ranks 1/3, 0, 2/3, 1
    assert row["scores"] == [pytest.approx(0.5 + 1 / 6), pytest.approx(1 + 2 / 6), 0.5, None]
    assert row["detail"] == "1 of 4 responses could not be scored: no verdict on '?'"


@pytest.mark.parametrize("name", ["one_for_all", "nan_for_one", "raises"])
def test_a_function_that_always_fails_ends_the_run_and_no_group_has_a_reward_of_0(tmp_path, name):
    run = run_of(tmp_path, truth=own(name) | {"group": True}, count=50)
    with pytest.raises(RewardFunctionError, match=rf"rewards_of_a_user\.{name} fails on 16 responses"):
        run.play()
    assert {row["fate"] for row in run.rows()} == {"failed"}
    assert not run.learner.steps


def test_when_a_run_ends_no_call_of_a_group_goes_on(tmp_path):
    class NeverRanks(GroupJudge):
        async def score(self, verifier, *about):
            if verifier == "function":
                await never()
            return await super().score(verifier, *about)

    judge = NeverRanks()
    assert not tasks_left_by_cancelling(run_of(tmp_path, judge=judge), lambda: len(judge.alone) == 3)


@pytest.mark.parametrize(
    ("generated", "scores"),
    [
        (2, [0.5, 1.5, 0.5]),  # the last response is generated anew, as the actor's first: lengths 4, 5, 4
        (3, [0.5, 1.25, 0.5]),
    ],
)
def test_a_group_that_waits_at_a_checkpoint_is_judged_after_the_resume(tmp_path, generated, scores):
    """The second prompt's group is generated as far as that, and not judged, when the process dies."""

    class Slow(ScriptedActor):
        asked = 0

        async def generate(self, prompt_ids, sampling, seed):
            if prompt_ids[0] == 2:
                self.asked += 1
                if self.asked > generated:
                    await never()
            return await super().generate(prompt_ids, sampling, seed)

    class NotTheSecond(GroupJudge):
        async def score(self, verifier, response, ground_truth, messages):
            if messages[0]["content"] == "question 2":
                await never()
            return await super().score(verifier, response, ground_truth, messages)

    async def dies(step):
        await settle()
        if step == 1:
            raise RuntimeError("the machine is gone")

    options = {"steps": 3, "checkpoint_every": 1, "async_steps": 2, "count": 12}
    run = run_of(tmp_path, judge=NotTheSecond(), **options)
    run.learner = RecordingLearner(dies)
    run.make_actor = lambda _: Slow(always(*TEXTS))
    with pytest.raises(RuntimeError, match="gone"):
        run.play()
    [checkpoint] = (tmp_path / "checkpoints").iterdir()
    _, in_flight = saved_groups(checkpoint, run.prompts)
    [group] = [group for group in in_flight if group.prompt.prompt_id == "p2"]
    assert sum(sample.stage is Stage.JUDGING for sample in group.samples) == generated
    after = run_of(tmp_path, **options).play()
    [row] = [row for row in after.rows("trained") if row["group"] == group.number]
    assert row["scores"] == scores


def test_validation_judges_all_responses_to_a_prompt_together(tmp_path):
    validation = {"every": 1, "prompts": 2, "samples": 3}
    run = run_of(tmp_path, truth=RANKS, validation=validation, stall_seconds=100).play()
    rows = [row for row in run.metrics() if "validation/version" in row]
    assert {row["validation/score"] for row in rows} == {0.5}
    assert [row["validation/pass_rate"] for row in rows] == pytest.approx([1 / 3] * len(rows))
    assert all(len(group) == 3 for group in run.judge.groups)
