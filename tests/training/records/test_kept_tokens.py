"""Tokens of a share of the groups are written with the responses: which groups, and what a row contains."""

import asyncio
from dataclasses import replace

import numpy as np
import pytest

from tasks.config.loading import SpecError, parse
from tasks.generation.config import SamplingConfig
from tasks.generation.interface import Completion, EpisodeTurn, VersionSpan
from tasks.inputs.files import Recipe
from tasks.recipe.objective import ShapingConfig
from tasks.training.cluster.disk import StoredModels, estimate_one_pod, head
from tasks.training.control.batch import advantages, train_batch
from tasks.training.groups.group import Group, JudgedGroup, Stage
from tasks.training.learner.client import StepReport
from tasks.training.records import response_files
from tasks.training.records.kept_tokens import TOKEN_COLUMNS, TrainedTokens, is_kept
from tasks.training.records.response_files import RolloutFiles
from tasks.verifiers import Score
from tests.training.control.test_controller_resume import crashed_at_the_fourth_step
from tests.training.control.test_episodes import run_of
from tests.training.records.test_ledger import group
from tests.training.scripted_environments import BETWEEN
from tests.training.stand_ins import LOGPROB, OLD_LOGPROB, RecordingLearner, Run, always, config, prompts

NAMES = [field.name for field in TOKEN_COLUMNS]


def kept(rows):
    """Numbers of the groups whose rows have tokens; a group has them in all rows or in none."""
    with_tokens = {row["group"] for row in rows if row["token_ids"] is not None}
    assert not with_tokens & {row["group"] for row in rows if row["token_ids"] is None}
    return with_tokens


def test_a_row_has_the_tokens_of_engine_learner_and_loss(tmp_path):
    run = Run(tmp_path, config(steps=2, keep_tokens=1), prompts(50), always("right", "?", "wrong", "half"))
    run.config = run.config.model_copy(update={"sampling": SamplingConfig(samples=4, max_tokens=8)})
    rows = [row for row in run.play().rollouts() if row["fate"] == "trained"]
    for row in rows:
        ids = list(row["response"].encode())
        assert row["token_ids"] == ids
        assert row["engine_logprobs"] == [LOGPROB] * len(ids)
        if row["response"] == "?":  # it could not be scored, so that no step was taken on it
            assert row["learner_logprobs"] is row["loss_mask"] is row["advantage"] is None
            continue
        assert row["learner_logprobs"] == [OLD_LOGPROB] * len(ids)
        assert row["loss_mask"] == [True] * len(ids)
        assert np.sign(row["advantage"]) == {"right": 1, "half": 0, "wrong": -1}[row["response"]]


@pytest.mark.parametrize(
    "options",
    [
        {"updates": {"minibatches": 2, "epochs": 2}},
        {"objective": {"kl": {"beta": 0.1, "in_reward": True}}},
        {"objective": {"kl": {"beta": 0.1}}},
    ],
    ids=["several updates", "a penalty in the reward", "a penalty in the loss"],
)
def test_probabilities_that_the_controller_has_are_not_returned_by_the_step(tmp_path, options):
    learner = RecordingLearner(steps_per_batch=4 if "updates" in options else 1)
    run = Run(tmp_path, config(keep_tokens=1, **options), prompts(50), learner=learner).play()
    returned = {sequence.is_returned for step in run.learner.steps for sequence in step.sequences}
    assert returned == {options.get("objective", {}).get("kl", {}) == {"beta": 0.1}}
    for row in run.rollouts():
        if row["fate"] == "trained":
            assert row["learner_logprobs"] == [OLD_LOGPROB] * len(row["token_ids"])


def test_a_run_that_keeps_none_has_none_of_its_steps_return_any(tmp_path):
    run = Run(tmp_path, config(), prompts(50)).play()
    assert not any(sequence.is_returned for step in run.learner.steps for sequence in step.sequences)
    assert all(row[name] is None for row in run.rollouts() for name in NAMES)


def test_a_group_without_a_gradient_is_not_in_the_mask(tmp_path):
    async def answers(_actor, prompt):
        return ["right", "right"] if prompt % 2 else ["right", "wrong"]

    run = Run(tmp_path, config(resampling={"kind": "none"}, keep_tokens=1), prompts(50), answers).play()
    rows = [row for row in run.rollouts() if row["fate"] == "trained"]
    assert {any(row["loss_mask"]) for row in rows} == {True, False}
    for row in rows:
        assert any(row["loss_mask"]) == any(row["learner_logprobs"]) == bool(row["advantage"])
        assert len(row["loss_mask"]) == len(row["learner_logprobs"]) == len(row["token_ids"])
    for metrics in run.metrics():
        assert metrics["trained_tokens"] == sum(sum(row["loss_mask"]) for row in rows if row["step"] == metrics["step"])


def test_tokens_of_an_episode_are_those_of_all_turns(tmp_path):
    run = run_of(tmp_path, answer=always("right", "wrong"), config={"keep_tokens": 1}).play()
    rows = [row for row in run.rollouts() if row["fate"] == "trained"]
    assert rows
    for row in rows:
        turns = [token for turn in row["turns"] for token in turn["token_ids"]]
        assert row["token_ids"] == turns
        inserted = [token for token, in_loss in zip(turns, row["loss_mask"], strict=True) if not in_loss]
        assert inserted == BETWEEN * 2
        for engine, learner, in_loss in zip(
            row["engine_logprobs"], row["learner_logprobs"], row["loss_mask"], strict=True
        ):
            assert (engine, learner) == ((LOGPROB, OLD_LOGPROB) if in_loss else (0, 0))


def test_an_episode_that_was_begun_anew_has_the_values_of_all_its_sequences():
    """Each sequence has a context of its own; their tokens follow one another in a row of the table."""
    [prompt] = prompts(1)
    judged = Group.create(7, prompt, 2, sampled_at=0.0, policy_version=0)
    turns = (EpisodeTurn(0, 3, "a"), EpisodeTurn(5, 7, "b"), EpisodeTurn(7, 9, "c", (), np.array([4, 5], np.int32)))
    for sample, score in zip(judged.samples, (1.0, 0.0), strict=True):
        ids = np.arange(10, 19, dtype=np.int32)
        sample.completion = Completion("c", ids, -ids / np.float32(10), "stop", [VersionSpan(0, 0, 9)], turns)
        sample.score, sample.stage = Score(score, score == 1.0, ""), Stage.JUDGED

    class ByToken(RecordingLearner):
        async def step(self, sequences, denominator, learning_rate):
            self.numbers = [sequence.kept_as for sequence in sequences]
            values = {s.kept_as: np.array(s.response_ids) / np.float32(-20) for s in sequences}
            return StepReport({"num_tokens": 1.0, "learn_seconds": 1.0}, values)

    learner, options = ByToken(), config(keep_tokens=1)
    batch = [JudgedGroup.from_group(judged, ShapingConfig(), finished_at=1.0)]
    trained = asyncio.run(train_batch(batch, 0, 1e-6, learner, options, advantages))
    assert learner.numbers == [0, 1, 2, 3]
    for tokens, sign in zip(trained.tokens[7], (1, -1), strict=True):
        mask = [True] * 3 + [False] * 2 + [True] * 4
        assert tokens.mask.tolist() == mask
        assert tokens.logprobs.tolist() == pytest.approx(np.where(mask, np.arange(10, 19) / -20, 0))
        assert np.sign(tokens.advantage) == sign
    again = [replace(batch[0], replays=1)]  # it was written after its first step
    assert asyncio.run(train_batch(again, 0, 1e-6, learner, options, advantages)).tokens == {}


@pytest.mark.parametrize("share", [0.0, 0.3, 1.0])
def test_the_share_is_kept_and_a_larger_share_keeps_the_same_groups_too(share):
    chosen = {number for number in range(20_000) if is_kept(number, share)}
    assert len(chosen) / 20_000 == pytest.approx(share, abs=0.015)  # four standard deviations
    assert chosen <= {number for number in range(20_000) if is_kept(number, min(1, share + 0.1))}


def test_a_resumed_run_keeps_the_groups_that_it_would_have_kept(tmp_path):
    before = crashed_at_the_fourth_step(tmp_path, keep_tokens=0.5)
    first = kept(before.rollouts())
    rows = Run(tmp_path, before.config, before.prompts).play().rollouts()
    groups = {row["group"] for row in rows}
    assert kept(rows) == {number for number in groups if is_kept(number, 0.5)}
    assert first <= kept(rows) < groups
    trained = [row for row in rows if row["fate"] == "trained" and row["token_ids"] is not None]
    assert {row["step"] for row in trained} >= {0, 5}
    assert all(row["learner_logprobs"] == [OLD_LOGPROB] * len(row["token_ids"]) for row in trained)


def test_tokens_count_as_what_waits_to_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(response_files, "FLUSH_BYTES", 13_000)
    for share in (0, 1):
        files = RolloutFiles(tmp_path / str(share), keep_tokens=share)
        single = group(0, (4, 3)).sampled
        for sample in single.samples:
            numbers = np.zeros(1000, np.int32), np.zeros(1000, np.float32)
            sample.completion = replace(sample.completion, token_ids=numbers[0], logprobs=numbers[1])
        tokens = [TrainedTokens(np.zeros(1000, np.float32), np.ones(1000, np.bool_), 1.0)]
        files.add(single, "trained", 0, tokens)
        assert files.is_due == bool(share)


def test_tokens_without_responses_are_refused():
    with pytest.raises(SpecError, match=r"keep_tokens = 0\.5.*keep_rollouts"):
        parse(Recipe, '{"extends": "quickstart", "keep_tokens": 0.5, "keep_rollouts": false}')


def test_the_disk_of_the_controllers_pod_has_room_for_them():
    sized = config(keep_tokens=0.5, steps=100, groups_per_step=64, sampling={"samples": 16, "max_tokens": 800})
    models = StoredModels(10**9, 10**9)
    expected = 0.5 * 100 * 64 * 16 * 800 * 12.125 / 2**30
    for need in (head(sized, models), estimate_one_pod(sized, models, gpus=True)):
        [item] = [item for item in need.run if item.name == "kept tokens"]
        assert item.gib == pytest.approx(expected)
        assert item.folder == "runs"
    assert not [item for item in head(config(), models).run if item.name == "kept tokens"]
