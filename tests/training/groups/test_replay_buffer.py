"""Groups with signal are trained on again, in place of groups that teach nothing; never unnamed, never too often."""

from collections import Counter

import pytest
from pydantic import ValidationError

from tasks.generation.interface import Completion, VersionSpan
from tasks.recipe.prompts import ReplayConfig
from tasks.training.groups.group import Group, JudgedGroup, JudgedSample
from tasks.training.groups.replay_buffer import ReplayBuffer
from tasks.training.records.ledger import Ledger
from tests.training.stand_ins import OLD_LOGPROB, RecordingLearner, Run, config, ids, numbers, prompts


async def first_prompts_teach(_actor, prompt):
    return ["right", "wrong"] if prompt <= 2 else ["wrong", "wrong"]


def played(folder, answer=first_prompts_teach, learner=None, **options):
    """A run in which the first step has two groups with signal, and no later one has any."""
    chosen = {"resampling": {"kind": "none"}, "async_steps": 0, "replay": {}, "actors": {"prefetch": 0}}
    return Run(folder, config(**{**chosen, **options}), prompts(50), answer, learner or RecordingLearner()).play()


def test_groups_with_signal_take_the_place_of_groups_that_teach_nothing(tmp_path):
    run = played(tmp_path)
    assert [step.prompts for step in run.learner.steps[:2]] == [[1, 2], [1, 2]]
    assert [(row["group"], row["step"]) for row in run.rows("replayed")] == [(0, 1), (1, 1)]
    assert [row["replayed_groups"] for row in run.metrics()] == [0, 2, 0]
    replaced, *_ = run.rows("zero_variance")
    assert replaced["detail"] == "every score is 0; group 1 is replayed"


def test_a_replayed_group_is_named_and_never_counted_as_fresh(tmp_path):
    run = played(tmp_path)
    assert Counter(numbers(run.rows("trained", "zero_variance"))) == dict.fromkeys(range(6), 1)
    for row in run.rows("replayed"):
        assert (row["scores"], row["num_tokens"]) == ([], [])
        assert row["detail"] == "trained on again, time 1; scores and tokens are in its row of fate trained"
    generated = sum(row["generated_tokens"] for row in run.metrics())
    assert generated == sum(sum(row["num_tokens"]) for row in run.rows())
    assert len(run.rollouts()) == 6 * 2  # every response once
    assert run.metrics()[1]["reward"] == 0.0  # of what was sampled; batch_reward is of what was trained on
    assert run.metrics()[1]["batch_reward"] == 0.5


def test_a_group_is_replayed_as_often_as_configured(tmp_path):
    run = played(tmp_path, steps=5, replay={"max_replays": 3})
    assert Counter(numbers(run.rows("replayed"))) == {0: 3, 1: 3}


def test_a_group_that_grew_too_old_is_not_replayed(tmp_path):
    run = played(tmp_path, steps=5, replay={"max_replays": 9}, max_staleness=2)
    assert [(row["group"], row["step"]) for row in run.rows("replayed")] == [(0, 1), (0, 2), (1, 1), (1, 2)]
    assert all(row["staleness_max"] <= 2 for row in run.metrics())


def test_log_probabilities_of_a_replayed_group_are_those_of_the_policy_that_is_trained(tmp_path):
    """With several updates for a batch the learner is asked before the first, whatever the group's age."""
    run = played(tmp_path, learner=RecordingLearner(steps_per_batch=2), steps=2, updates={"minibatches": 2})
    assert all(set(s.old_logprobs) == {OLD_LOGPROB} for step in run.learner.steps[2:] for s in step.sequences)


def test_what_can_be_replayed_survives_a_restart(tmp_path):
    played(tmp_path, steps=1)
    run = played(tmp_path, steps=2)
    assert [(row["group"], row["step"]) for row in run.rows("replayed")] == [(0, 1), (1, 1)]
    assert run.controller.lifecycle.replay.groups == {}


def judged(number, *scores, replays=0):
    group = Group.create(number, prompts(1)[0], len(scores), sampled_at=0.0, policy_version=0)
    completion = Completion("word", [5], [-0.5], "stop", [VersionSpan(0, 0, 1)])
    samples = tuple(JudgedSample(completion, score, passed=score == 1, rewards=()) for score in scores)
    return JudgedGroup(group, samples, (), finished_at=1.0, replays=replays)


def test_the_buffer_keeps_the_largest_spreads_and_gives_what_was_replayed_least():
    buffer = ReplayBuffer(ReplayConfig(size=2, max_replays=2))
    for number, scores in enumerate([(1, 0), (0.6, 0.4), (1, 0.2)]):
        buffer.add(judged(number, *scores))
    assert sorted(buffer.groups) == [0, 2]
    first = buffer.take()
    assert (first.number, first.replays) == (0, 1)
    buffer.add(first)
    assert [buffer.take().number, buffer.take().number, buffer.take()] == [2, 0, None]


def test_the_ledger_tells_a_replay_from_a_group_that_is_trained_on_twice(tmp_path):
    ledger = Ledger(tmp_path / "ledger.jsonl")
    group = judged(0, 1.0, 0.0)
    with pytest.raises(ValueError, match="group 0 has not left the ledger; it cannot be replayed"):
        ledger.add_replay(group, step=1, spread=0.5)
    ledger.close_group(group, "trained", step=0, spread=0.5)
    ledger.add_replay(group, step=1, spread=0.5)
    with pytest.raises(ValueError, match="group 0 already left the ledger"):
        ledger.close_group(group, "trained", step=1, spread=0.5)
    assert ledger.fates == {"trained": 1, "replayed": 1}
    ledger.close()


def test_replay_beside_resampling_is_refused():
    with pytest.raises(ValidationError, match=r"replay: with resampling.kind = active, .* set resampling.kind = none"):
        config(replay={})


def test_without_a_buffer_nothing_is_replayed(tmp_path):
    run = played(tmp_path, replay=None)
    assert not run.rows("replayed")
    assert ids(run.rows("trained")) == [1, 2, 3, 4, 5, 6]
    assert "replayed_groups" not in run.metrics()[0]
