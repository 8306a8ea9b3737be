"""Episodes in a run: what the learner is given, and what stays of an episode whose actor or driver is lost."""

import asyncio

import pytest

from tasks.environments.sessions import Failed
from tasks.training.actors.process import ActorLostError
from tasks.verifiers.scores import FunctionFailure
from tests.training.scripted_environments import BETWEEN, ENVIRONMENT, ScriptedSession, episodes
from tests.training.stand_ins import (
    LOGPROB,
    RecordingLearner,
    Run,
    ScriptedActor,
    TableJudge,
    always,
    config,
    prompts,
    saved_groups,
)

SAMPLING = {"samples": 2, "max_tokens": 64}


class ByPrompt(ScriptedSession):
    """Its reward is 1 for every other episode, so that every group has a spread."""

    number = 0

    def choose(self, _seed):
        type(self).number += 1
        self.reward = float(self.number % 2)


def run_of(folder, make=ByPrompt, **options):
    judge = TableJudge()
    options = {"config": config(**{"sampling": SAMPLING, **options.pop("config", {})}), **options}
    return Run(folder, prompts=prompts(40, environment=ENVIRONMENT), judge=judge, episodes=episodes(make), **options)


def test_the_learner_is_given_all_turns_and_trains_on_those_of_the_policy(tmp_path):
    run = run_of(tmp_path, answer=always("right", "wrong")).play()
    for step in run.learner.steps:
        for sequence in step.sequences:
            mask, ids = sequence.mask, list(sequence.response_ids)
            inserted = [position for position, trained in enumerate(mask) if not trained]
            assert [ids[position] for position in inserted] == BETWEEN * 2
            assert sequence.num_trained == len(ids) - 4 == 15
            assert {sequence.rollout_logprobs[i] for i, trained in enumerate(mask) if trained} == {LOGPROB}
    rows = [row for row in run.rollouts() if row["fate"] == "trained"]
    for row in rows:
        assert [turn["role"] for turn in row["turns"]] == ["assistant", "user"] * 2 + ["assistant"]
        assert row["turns"][1]["token_ids"] == BETWEEN
        assert row["num_tokens"] == 15
        assert row["score"] in (0.0, 1.0)
    assert run.judge.judged == 0  # every reward was the environment's


def test_the_verifier_judges_the_last_turn_of_an_episode_without_a_reward(tmp_path):
    run = run_of(tmp_path, lambda: ScriptedSession(reward=None), answer=always("right", "wrong")).play()
    assert run.judge.judged > 0
    assert {row["rewards"] == [] for row in run.rollouts()} == {True}


def test_turns_of_a_lost_actor_are_not_sampled_again(tmp_path):
    turns = []

    class Mortal(ScriptedActor):
        """Its first one dies at the second turn of any episode."""

        async def generate(self, prompt_ids, sampling, seed):
            if len(prompt_ids) > 2 and len(run.actors) == 1:
                raise ActorLostError("it died")
            turns.append((prompt_ids[0], len(prompt_ids)))
            return await super().generate(prompt_ids, sampling, seed)

    run = run_of(tmp_path, config={"steps": 1, "async_steps": 0}, make_actor=lambda _: Mortal(always("right", "wrong")))
    run.play()
    assert len(run.actors) == 2
    firsts = [turn for turn in turns if turn[1] == 2]
    assert max(firsts.count(turn) for turn in firsts) == 2  # one for each sample, whoever died


def test_a_checkpoint_holds_the_turns_of_an_unfinished_episode(tmp_path):
    class Stuck(ScriptedSession):
        """The environment of every third episode takes for ever after its first turn."""

        number = 0

        def choose(self, seed):
            type(self).number += 1
            self.reward = float(self.number % 2)
            self.stuck = self.number % 3 == 0

        async def next(self):
            if self.had == 1 and self.stuck:
                await asyncio.sleep(1e5)
            return await super().next()

    class CrashError(Exception):
        pass

    async def crash(step):
        await asyncio.sleep(5)
        if step == 2:
            raise CrashError

    options = {"steps": 3, "checkpoint_every": 1, "async_steps": 2, "stall_seconds": 1e6}
    before = run_of(tmp_path, Stuck, config=options, learner=RecordingLearner(crash))
    with pytest.raises(CrashError):
        before.play()
    checkpoint = sorted((tmp_path / "checkpoints").iterdir())[-1]
    _, in_flight = saved_groups(checkpoint, before.prompts)
    recorded = [sample.recorded for group in in_flight for sample in group.samples if sample.recorded]
    assert recorded
    assert {len(completion.turns) for completion in recorded} == {1}
    after = run_of(tmp_path, config=options).play()
    assert [row["step"] for row in after.metrics()] == [0, 1, 2]


class Slow(ByPrompt):
    """It takes 2 s before each of its four requests, the last of which is its return, and fails in every fifth episode.

    Such an episode ends at its second request.
    """

    def __init__(self):
        super().__init__(seconds=2.0)

    async def next(self):
        asked = await super().next()
        if self.had == 1 and self.episode % 5 == 0:
            return Failed("it raised", FunctionFailure(ENVIRONMENT.path, "raised"))
        return asked

    def choose(self, seed):
        super().choose(seed)
        self.episode = self.number


def test_the_seconds_of_environments_are_those_in_which_no_actor_generates(tmp_path):
    class Thinking(ScriptedActor):
        """It takes 7 s for a turn."""

        async def generate(self, prompt_ids, sampling, seed):
            await asyncio.sleep(7)
            return await super().generate(prompt_ids, sampling, seed)

    sampling = {"samples": 5, "max_tokens": 64}
    options = {"steps": 1, "async_steps": 0, "groups_per_step": 1, "sampling": sampling}
    actor = Thinking(always(*["right"] * 5))
    [row] = run_of(tmp_path, Slow, config=options, make_actor=lambda _: actor).play().metrics()
    assert row["samples"] == 5
    assert row["environment_seconds"] == pytest.approx((4 * (4 * 2) + 2 * 2) / 5)
    assert row["environment_failures"] == row[f"environment_failures/{ENVIRONMENT.path}"] == 1
    assert (row["episode_turns"], row["environment_tokens"]) == (3, 4 / (15 + 4))


def test_the_seconds_of_an_episode_are_those_of_the_actor_that_finished_it(tmp_path):
    class Mortal(ScriptedActor):
        """The first one dies at the second turn of any episode, after its environment had that for 4 s."""

        async def generate(self, prompt_ids, sampling, seed):
            if len(prompt_ids) > 2 and len(run.actors) == 1:
                raise ActorLostError("it died")
            return await super().generate(prompt_ids, sampling, seed)

    class Steady(ByPrompt):
        def __init__(self):
            super().__init__(seconds=2.0)

    options = {"steps": 1, "async_steps": 0}
    run = run_of(tmp_path, Steady, config=options, make_actor=lambda _: Mortal(always("right", "wrong")))
    [row] = run.play().metrics()
    assert len(run.actors) == 2
    assert row["environment_seconds"] == pytest.approx(4 * 2)
    assert row["environment_failures"] == 0


def test_a_run_without_episodes_has_no_metrics_of_them(tmp_path):
    run = Run(tmp_path, config(steps=2), prompts(40)).play()
    assert not [name for row in run.metrics() for name in row if name.startswith(("environment", "episode"))]


def test_turns_are_printed_while_training(tmp_path, capsys):
    run_of(tmp_path, config={"steps": 1, "log_completions": 1}, answer=always("right", "wrong")).play()
    printed = capsys.readouterr().err
    assert (
        "\n▸ assistant: right\n  user: turn 1\n▸ assistant: right\n  user: turn 2\n▸ assistant: right\n■ reward "
        in printed
    )
