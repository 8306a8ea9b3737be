"""What becomes of a response that cannot be scored, and of its group, shown with stand-ins for everyone else.

A response that is not in the judge's table, such as `?`, cannot be scored.
"""

import asyncio
from math import sqrt

import pytest

from tasks.training.actors.rewards import JudgementError
from tasks.verifiers import Reward, Score
from tasks.verifiers.function_watch import RewardFunctionError
from tasks.verifiers.scores import FunctionFailure
from tests.training.stand_ins import (
    LOGPROB,
    SCORES,
    RecordingLearner,
    Run,
    TableJudge,
    config,
    never,
    prompts,
    saved_groups,
    settle,
    tasks_left_by_cancelling,
)

FOUR = {"samples": 4, "max_tokens": 8}
ANSWERS = {1: ["right", "?", "wrong", "wrong"], 2: ["right", "wrong", "wrong", "wrong"]}
"""Three responses of the first prompt can be judged, and all of the second."""


async def answers(_actor, prompt):
    return ANSWERS[prompt]


async def answers_of_all(_actor, _prompt):
    return ["right", "right", "wrong", "wrong"]


def one_step(folder, judge=None, **options):
    """A step on the two groups of `ANSWERS`."""
    options = config(**{"steps": 1, "sampling": FOUR, "async_steps": 0, **options})
    return Run(folder, options, prompts(2), answers, judge=judge or TableJudge())


def advantages(run):
    """Those of the first step's responses, by prompt."""
    [step] = run.play().learner.steps
    return {number: [s.advantage for s in step.sequences if s.prompt_ids[0] == number] for number in (1, 2)}


def test_a_response_that_cannot_be_judged_leaves_its_group_and_the_others_are_trained_on(tmp_path):
    run = one_step(tmp_path)
    by_prompt = advantages(run)
    assert by_prompt[1] == pytest.approx([2 / 3, -1 / 3, -1 / 3])
    assert by_prompt[2] == [0.75, -0.25, -0.25, -0.25]
    [step] = run.learner.steps
    assert [bytes(s.response_ids) for s in step.sequences if s.prompt_ids[0] == 1] == [b"right", b"wrong", b"wrong"]
    assert all(list(s.rollout_logprobs) == [LOGPROB] * 5 for s in step.sequences)
    assert step.denominator == 7 * 5


def test_the_ledger_says_how_many_responses_have_no_judgement_and_why(tmp_path):
    run = one_step(tmp_path).play()
    row, whole = run.rows("trained")
    assert (row["scores"], row["num_tokens"]) == ([1.0, 0.0, 0.0, None], [5, 5, 5, 1])
    assert row["detail"] == "1 of 4 responses could not be scored: no verdict on '?'"
    assert row["advantage_spread"] == pytest.approx(sqrt(2 / 9))
    assert (whole["scores"], whole["detail"]) == ([1.0, 0.0, 0.0, 0.0], None)
    assert run.ledger.table().column("scores").to_pylist()[0] == [1.0, 0.0, 0.0, None]


def test_metrics_count_what_was_not_judged_and_are_those_of_what_was(tmp_path):
    [row] = one_step(tmp_path).play().metrics()
    expected = {
        "unjudged_samples": 1,
        "failed_groups": 0,
        "groups": 2,
        "reward": 2 / 7,
        "batch_reward": 2 / 7,
        "generated_tokens": 7 * 5 + 1,
        "trained_tokens": 7 * 5,
        "response_length": 5,
    }
    assert {name: row[name] for name in expected} == pytest.approx(expected)


def test_moments_of_the_batch_are_those_of_the_judged_responses(tmp_path):
    objective = {"advantage": "reinforce_pp"}
    share = 2 / 7
    hit, miss = sqrt((1 - share) / share), -sqrt(share / (1 - share))
    by_prompt = advantages(one_step(tmp_path, objective=objective))
    assert by_prompt[1] == pytest.approx([hit, miss, miss])
    assert by_prompt[2] == pytest.approx([hit, miss, miss, miss])


def test_the_distance_from_the_reference_is_taken_from_the_reward_of_its_own_response(tmp_path):
    class UnlikeLearner(RecordingLearner):
        async def reference_logprobs(self, sequences):
            return [[-float(index)] * len(s.response_ids) for index, s in enumerate(sequences)]

    objective = {"kl": {"beta": 0.1, "estimator": "k1", "in_reward": True}}
    run = one_step(tmp_path, objective=objective)
    run.learner = UnlikeLearner()
    by_prompt = advantages(run)
    # k1 of response i is 5 (i - 0.5) nats, and a tenth of it is taken from its reward
    rewards = [score - 0.5 * (i - 0.5) for i, score in enumerate([1, 0, 0, 1, 0, 0, 0])]
    assert by_prompt[1] == pytest.approx([r - sum(rewards[:3]) / 3 for r in rewards[:3]])
    assert by_prompt[2] == pytest.approx([r - sum(rewards[3:]) / 4 for r in rewards[3:]])


def test_several_rewards_are_normalised_over_the_judged_responses(tmp_path):
    class TwoRewards(TableJudge):
        async def score(self, *about):
            score = await super().score(*about)
            return Score(score.value, score.passed, "", rewards=(Reward("right", 1.0, score.value),))

    objective = {"advantage": "group_norm", "reward_aggregation": "normalize_then_sum"}
    by_prompt = advantages(one_step(tmp_path, TwoRewards(), objective=objective))
    first = [x / sqrt(1 / 3) for x in (2 / 3, -1 / 3, -1 / 3)]
    second = [x / 0.5 for x in (0.75, -0.25, -0.25, -0.25)]
    scale = sqrt(sum(x * x for x in (*first, *second)) / 7)
    assert by_prompt[1] == pytest.approx([x / scale for x in first], abs=1e-5)
    assert by_prompt[2] == pytest.approx([x / scale for x in second], abs=1e-5)


def test_minibatches_are_whole_groups_of_whatever_size(tmp_path):
    run = one_step(tmp_path, updates={"minibatches": 2})
    run.learner.steps_per_batch = 2
    run.play()
    assert [[s.prompt_ids[0] for s in step.sequences] for step in run.learner.steps] == [[1] * 3, [2] * 4]
    assert [step.denominator for step in run.learner.steps] == [15, 20]


def first_answer(*texts):
    """The first prompt is answered by `texts`, every other by one response that is right and others that are not."""

    async def answer(_actor, prompt):
        return list(texts) if prompt == 1 else ["right", *["wrong"] * (len(texts) - 1)]

    return answer


def test_judged_responses_with_equal_scores_teach_nothing(tmp_path):
    options = config(steps=1, sampling=FOUR, async_steps=0)
    run = Run(tmp_path, options, prompts(9), first_answer("right", "?", "right", "?")).play()
    [row] = run.rows("zero_variance")
    assert row["scores"] == [1.0, 1.0, None, None]
    assert row["detail"] == "every score is 1; 2 of 4 responses could not be scored: no verdict on '?'"
    assert run.metrics()[0]["solved"] == 1 / 3
    assert run.metrics()[0]["unjudged_samples"] == 2


@pytest.mark.parametrize("texts", [("right", "?", "?", "?"), ("?", "?", "?", "?"), ("right", "?")])
def test_a_group_with_fewer_than_two_judged_responses_fails_and_is_never_a_reward_of_0(tmp_path, texts):
    samples = len(texts)
    options = config(steps=1, sampling={"samples": samples, "max_tokens": 8})
    run = Run(tmp_path, options, prompts(9), first_answer(*texts)).play()
    [failed] = run.rows("failed")
    assert (failed["prompt_id"], failed["scores"], len(failed["num_tokens"])) == ("p1", [], samples)
    assert f"of {samples} responses could not be scored: no verdict on '?'" in failed["detail"]
    assert run.learner.steps[0].prompts == [2, 3]
    [row] = run.metrics()
    assert row["reward"] == 1 / samples
    assert row["failed_groups"] == 1
    assert samples - 1 <= row["unjudged_samples"] <= samples


def test_a_users_function_that_always_fails_ends_the_run_with_its_name_and_line(tmp_path):
    class Failing(TableJudge):
        async def score(self, *_about):
            self.judged += 1
            failure = FunctionFailure("mine.f", "raised KeyError (mine.py, line 3)")
            raise JudgementError("reward function mine.f raised KeyError: 'x' (mine.py, line 3)", failure)

    judge = Failing()
    options = config(steps=1, sampling=FOUR, async_steps=0)
    with pytest.raises(
        RewardFunctionError, match=r"mine\.f fails on 16 responses .*KeyError: 'x' \(mine\.py, line 3\)"
    ):
        Run(tmp_path, options, prompts(50), answers_of_all, judge=judge).play()
    assert judge.judged < 50


def test_when_too_few_are_left_no_judgement_of_the_group_goes_on(tmp_path):
    class HalfDeafJudge:
        async def score(self, _verifier, response, _ground_truth, _messages):
            if response == "?":
                raise JudgementError("no verdict")
            await never()

    async def first_is_unjudgeable(_actor, prompt):
        return ["?", "right"] if prompt == 1 else ["right", "right"]

    run = Run(tmp_path, config(groups_per_step=1), prompts(50), first_is_unjudgeable, judge=HalfDeafJudge())
    assert not tasks_left_by_cancelling(run, lambda: len(run.rows("failed")) == 1)


def test_a_group_waits_for_the_judgements_of_its_other_responses(tmp_path):
    class SlowJudge(TableJudge):
        async def score(self, verifier, response, ground_truth, messages):
            if response in SCORES:
                await settle()
            return await super().score(verifier, response, ground_truth, messages)

    assert advantages(one_step(tmp_path, SlowJudge()))[1] == pytest.approx([2 / 3, -1 / 3, -1 / 3])


def test_a_group_that_waits_at_a_checkpoint_remembers_what_left_it(tmp_path):
    async def stop(step):
        await settle()
        if step == 1:
            raise RuntimeError("the machine is gone")

    async def all_lack_one(_actor, _prompt):
        return ["right", "?", "wrong"]

    options = config(steps=3, sampling={"samples": 3, "max_tokens": 8}, checkpoint_every=1, async_steps=2)
    run = Run(tmp_path, options, prompts(50), all_lack_one, RecordingLearner(stop))
    with pytest.raises(RuntimeError, match="gone"):
        run.play()
    [checkpoint] = (tmp_path / "checkpoints").iterdir()
    ready, _ = saved_groups(checkpoint, run.prompts)
    assert ready
    after = Run(tmp_path, options, run.prompts, all_lack_one).play()
    trained = {row["group"]: row for row in after.rows("trained")}
    for group in ready:
        assert trained[group.number]["scores"] == [1.0, 0.0, None]
        assert "1 of 3" in trained[group.number]["detail"]


def test_a_run_that_takes_turns_gives_the_same_whatever_the_order_of_judgements(tmp_path):
    class ShuffledJudge(TableJudge):
        def __init__(self, slow):
            super().__init__()
            self.slow = slow

        async def score(self, verifier, response, ground_truth, messages):
            if response == self.slow:
                await asyncio.sleep(0.01)
            return await super().score(verifier, response, ground_truth, messages)

    def outcome(slow):
        (tmp_path / slow).mkdir()
        return advantages(one_step(tmp_path / slow, ShuffledJudge(slow), async_steps=0, max_staleness=0))

    assert outcome("right") == outcome("wrong") == outcome("?")
