"""Advantages of a function of the user's: what it gets, and what becomes of one advantage for each token."""

import asyncio

import numpy as np
import pytest
import torch

from tasks.generation.interface import Completion, EpisodeTurn, VersionSpan
from tasks.recipe.objective import ObjectiveConfig, ShapingConfig
from tasks.training.control.batch import compute_spread, select_with_gradient, train_batch
from tasks.training.control.own_advantages import make_reward_batch, resolve_advantages
from tasks.training.groups.group import Group, JudgedGroup, Prompt, Stage
from tasks.training.learner.client import StepReport
from tasks.training.learner.packing import Sequence, pack
from tasks.verifiers import Reward, Score
from tests.training.control.test_controller_resume import crashed_at_the_fourth_step
from tests.training.control.test_episodes import run_of
from tests.training.stand_ins import RecordingLearner, Run, always, config, prompts

RISING = {"function": "tests.training.own_objective.rising"}
"""An advantage for each token: that of the group's mean, times the token's position."""
MEAN = {"function": "tests.training.own_objective.group_mean"}


def judged(scores, lengths, turns=(), number=0):
    prompt = Prompt(f"p{number}", "math", [], "math", "1", [number, 1], source="sums", metadata='{"level": 3}')
    group = Group.create(number, prompt, len(scores), sampled_at=0.0, policy_version=0)
    for sample, score, length in zip(group.samples, scores, lengths, strict=True):
        ids = np.arange(length, dtype=np.int32)
        finish = "length" if length == max(lengths) else "stop"
        sample.completion = Completion(
            "text", ids, np.full(length, -1, np.float32), finish, [VersionSpan(0, 0, length)], turns
        )
        rewards = (Reward("answer", 1.0, score),)
        sample.score, sample.stage = Score(score, score == 1.0, "", rewards=rewards), Stage.JUDGED
    return JudgedGroup.from_group(group, ShapingConfig(signed=True), finished_at=1.0)


def test_the_function_gets_shaped_rewards_less_the_penalty_lengths_and_metadata():
    groups = [judged([1.0, 0.0], [2, 3]), judged([0.5], [1], number=1)]
    batch = make_reward_batch(groups, [0.25, 0.0, 0.5])
    assert batch.rewards.tolist() == [[0.75, -1.0], [-0.5, 0.0]]  # 2 r - 1, less the penalty
    assert batch.rewards.dtype == torch.float64
    assert batch.lengths.tolist() == [[2, 3], [1, 0]]
    assert batch.present.tolist() == [[True, True], [True, False]]
    assert batch.sampled.int().tolist() == [[[1, 1, 0], [1, 1, 1]], [[1, 0, 0], [0, 0, 0]]]
    assert [len(row) for row in batch.metadata] == [2, 1]
    assert batch.metadata[0][1] == {
        "prompt_id": "p0",
        "source": "sums",
        "domain": "math",
        "metadata": {"level": 3},
        "passed": False,
        "truncated": True,
        "rewards": {"answer": 0.0},
    }


def test_a_prompt_has_the_source_and_the_metadata_of_its_row():
    row = {"prompt_id": "p", "domain": "math", "messages": [], "verifier": "math", "ground_truth": "1"}
    prompt = Prompt.from_row(row | {"environment": None, "source": "sums", "metadata": '{"level": 3}'}, [1])
    assert (prompt.source, prompt.metadata) == ("sums", '{"level": 3}')


def test_inserted_tokens_of_an_episode_are_counted_and_not_marked_as_sampled():
    turns = (EpisodeTurn(0, 2, "a"), EpisodeTurn(4, 5, "b"))
    batch = make_reward_batch([judged([1.0], [5], turns)], [0.0])
    assert batch.lengths.tolist() == [[5]]
    assert batch.sampled.int().tolist() == [[[1, 1, 0, 0, 1]]]


class Steps(RecordingLearner):
    async def step(self, sequences, denominator, learning_rate):
        self.sequences = sequences
        values = {s.kept_as: np.zeros(len(s.response_ids), np.float32) for s in sequences}
        return StepReport({"num_tokens": 1.0, "learn_seconds": 1.0}, values)


def trained_on(groups, **objective):
    learner, options = Steps(), config(keep_tokens=1, objective=objective)
    compute = resolve_advantages(options.objective)
    return learner, asyncio.run(train_batch(groups, 0, 1e-6, learner, options, compute))


def test_one_advantage_for_each_token_reaches_its_token_in_packed_rows_and_in_the_record():
    # rewards 1 and -1 after shaping, so that the group's mean gives 1 and -1, and tokens 0 to 2 of them
    learner, trained = trained_on([judged([1.0, 0.0], [2, 3])], advantage=RISING)
    assert [sequence.advantage.tolist() for sequence in learner.sequences] == [[0, 1], [0, -1, -2]]
    [[row]] = pack(learner.sequences, 64)
    by_sequence = [row.advantages[row.sequence_ids == index].tolist() for index in (0, 1)]
    assert by_sequence == [[0, 1], [0, -1, -2]]
    alone = [batch.advantages[0].tolist() for batch in pack(learner.sequences, 5)[0]]
    assert sorted(alone) == [[0, -1, -2], [0, 1]]
    assert [tokens.advantage.tolist() for tokens in trained.tokens[0]] == [[0, 1], [0, -1, -2]]
    assert trained.spreads == [pytest.approx(np.std([0, 1, 0, -1, -2]))]


def test_a_function_that_repeats_a_built_in_estimator_changes_nothing():
    groups = [judged([1.0, 0.0, 0.25], [2, 3, 4]), judged([0.5, 1.0], [1, 2], number=1)]
    results = [trained_on(groups, advantage=advantage) for advantage in ("group_mean", MEAN)]
    expected, actual = ([sequence.advantage for sequence in learner.sequences] for learner, _ in results)
    assert actual == expected
    assert results[0][1].spreads == results[1][1].spreads


def test_pieces_of_an_episode_have_the_advantages_of_their_own_tokens():
    restarted = (EpisodeTurn(0, 2, "a"), EpisodeTurn(4, 5, "b"), EpisodeTurn(5, 7, "c", (), np.array([8], np.int32)))
    learner, trained = trained_on([judged([1.0, 0.0], [7, 7], restarted)], advantage=RISING)
    positions = [[0, 1, 0, 0, 4], [5, 6]]  # `rising` gives 0 to tokens that the policy did not sample
    expected = [[sign * value for value in piece] for sign in (1, -1) for piece in positions]
    assert [sequence.advantage.tolist() for sequence in learner.sequences] == expected
    assert [row.advantages.tolist() for row in pack(learner.sequences[:1], 64)[0]] == [[[0, 1, 0, 0, 4]]]
    assert trained.tokens[0][1].advantage.tolist() == [0, -1, 0, 0, -4, -5, -6]


def test_a_group_is_trained_on_for_any_token_with_an_advantage():
    def group(*advantages):
        return [[Sequence([1], [5, 6], [-1.0, -1.0], np.array(values, np.float32))] for values in advantages]

    moving = select_with_gradient([group([0, 0], [0, 0]), group([0, 0], [0, 1])], ObjectiveConfig())
    assert [sequence.advantage.tolist() for sequence in moving] == [[0, 0], [0, 1]]
    with pytest.raises(ValueError, match="advantage has 3 entries for 2 response_ids"):
        group([0, 0, 0])


def test_the_spread_of_advantages_is_over_responses_or_over_tokens():
    assert compute_spread([1.0, -1.0]) == 1.0
    assert compute_spread([np.float32([1, 1, 1]), np.float32([-3])]) == pytest.approx(3**0.5)
    assert compute_spread([np.zeros(0, np.float32)]) == 0.0


def steps_of(*runs):
    """Prompts and advantages of all sequences of each step, in the order of steps; a resumed run repeats none."""
    return [
        [(s.prompt_ids, np.asarray(s.advantage).tolist()) for s in step.sequences]
        for run in runs
        for step in run.learner.steps
    ]


def test_a_run_that_resumes_trains_on_the_same_advantages(tmp_path):
    """Saved groups and their rewards are the function's input again."""
    options = {"objective": {"advantage": RISING}}
    crashed = crashed_at_the_fourth_step(tmp_path / "resumed", **options)
    resumed = Run(tmp_path / "resumed", crashed.config, crashed.prompts).play()
    whole = Run(tmp_path / "whole", crashed.config, crashed.prompts).play()
    before = steps_of(crashed)[:3]  # the fourth step was lost
    assert before + steps_of(resumed) == steps_of(whole)
    assert [0.0, 0.5, 1.0, 1.5, 2.0] in [values for step in steps_of(whole) for _, values in step]  # of "right"
    rows = [row for row in resumed.rollouts() if row["fate"] == "trained"]
    assert all(row["advantage"] is None for row in rows)


def test_the_record_has_the_advantages_of_tokens(tmp_path):
    options = config(steps=1, keep_tokens=1, objective={"advantage": RISING})
    rows = [row for row in Run(tmp_path, options, prompts(9)).play().rollouts() if row["fate"] == "trained"]
    by_text = {row["response"]: (row["advantage"], row["token_advantages"]) for row in rows}
    assert by_text == {
        "right": (None, [0.0, 0.5, 1.0, 1.5, 2.0]),
        "wrong": (None, [0.0, -0.5, -1.0, -1.5, -2.0]),
    }


async def first_prompts_teach(_actor, prompt):
    return ["right", "wrong"] if prompt <= 2 else ["wrong", "wrong"]


def test_a_replayed_group_has_the_advantages_of_its_first_step(tmp_path):
    options = config(
        resampling={"kind": "none"}, async_steps=0, replay={}, actors={"prefetch": 0}, objective={"advantage": RISING}
    )
    run = Run(tmp_path, options, prompts(50), first_prompts_teach).play()
    first, again, _ = steps_of(run)
    assert [step.prompts for step in run.learner.steps[:2]] == [[1, 2], [1, 2]]
    assert sorted(again) == sorted(first)


@pytest.mark.parametrize(
    "resampling",
    [{"kind": "active"}, {"kind": "dynamic", "metric": "passed"}, {"kind": "none"}],
    ids=["active", "dynamic", "none"],
)
@pytest.mark.parametrize("keep", [True, False])
def test_the_option_says_whether_the_function_gets_groups_of_equal_rewards(tmp_path, resampling, keep):
    async def third_teaches(_actor, prompt):
        return ["right", "wrong"] if prompt % 3 == 0 else ["wrong", "wrong"]

    options = config(
        steps=1,
        async_steps=0,
        actors={"prefetch": 0},
        resampling=resampling,
        objective={"advantage": {**MEAN, "keep_equal_rewards": keep}},
    )
    run = Run(tmp_path, options, prompts(50), third_teaches).play()
    trained = sorted({int(row["prompt_id"][1:]) for row in run.rows("trained")})
    assert trained == ([1, 2] if keep or resampling["kind"] == "none" else [3, 6])
    assert (run.metrics()[0]["zero_variance"] == 0) == keep


def test_episodes_in_a_run_have_an_advantage_for_each_token(tmp_path):
    run = run_of(tmp_path, answer=always("right", "wrong"), config={"objective": {"advantage": RISING}}).play()
    for sequence in run.learner.steps[0].sequences:
        mask = np.array(sequence.mask)
        assert len(sequence.advantage) == len(sequence.response_ids)
        assert not sequence.advantage[~mask].any()
        assert len(set(sequence.advantage[mask].tolist())) == mask.sum()
