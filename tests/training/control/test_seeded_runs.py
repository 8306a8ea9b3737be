"""Runs in virtual time, each with its own faults at its own moments: 200 in `make test`, 1,000 in `make test-all`.

Controller, window, fleet, ledger and checkpoints are the real ones. Actors are clocks that die, hang, start late,
refuse requests and fail at updates; judgements take time and fail; the learner is lost; the driver is killed
and started again. In every other run the prompts have environments: episodes of random length, which hang, raise or
overrun.
"""

import asyncio
import random
from collections import Counter

import pytest

from tasks.generation.interface import EngineStatistics, RequestRefusedError
from tasks.recipe.run import ActorsConfig
from tasks.training.actors.process import ActorLostError
from tasks.training.actors.rewards import JudgementError
from tasks.training.control.validation import split_validation
from tasks.training.learner.client import LearnerLostError
from tasks.training.records.run_state import RunState
from tests.training.scripted_environments import ENVIRONMENT, FaultySession, episodes
from tests.training.stand_ins import RecordingLearner, Run, ScriptedActor, TableJudge, config, never, prompts

HUNDREDS = (0, 1, *(pytest.param(number, marks=pytest.mark.complete) for number in range(2, 10)))
PROMPTS = 30


class KilledError(Exception):
    """Stands for the death of the driver."""


class FaultyActor(ScriptedActor):
    """An actor of which anything can go wrong, drawn from `chance`."""

    def __init__(self, chance, poisoned):
        super().__init__(self.answered)
        self.chance = chance
        self.poisoned = poisoned
        self.slowness = chance.choice([1, 1, 1, 10])
        self.hangs = False

    async def start(self):
        await asyncio.sleep(self.chance.uniform(0, 100))
        if self.chance.random() < 0.05:
            raise ActorLostError("it does not start")
        await super().start()

    async def answered(self, _actor, prompt):
        await asyncio.sleep(self.chance.expovariate(1 / 20) * self.slowness)
        if prompt in self.poisoned or self.chance.random() < 0.01:
            raise ActorLostError("illegal memory access")
        if self.chance.random() < 0.01:
            raise RequestRefusedError("too long")
        self.hangs = self.hangs or self.chance.random() < 0.005
        if self.hangs:
            await never()
        return [self.chance.choice(["right", "wrong", "half", "?"]) for _ in range(3)]

    async def statistics(self):
        return EngineStatistics(generated_tokens=0 if self.hangs else int(asyncio.get_running_loop().time()))

    async def update(self, path, version, *, keep_cache):
        await asyncio.sleep(self.chance.uniform(0, 2))
        if self.chance.random() < 0.02:
            raise ActorLostError("no memory for the new weights")
        return await super().update(path, version, keep_cache=keep_cache)


class SlowJudge(TableJudge):
    def __init__(self, chance):
        super().__init__()
        self.chance = chance

    async def score(self, verifier, response, ground_truth, messages):
        await asyncio.sleep(self.chance.uniform(0, 30))
        if self.chance.random() < 0.01:
            raise JudgementError("the endpoint is away")
        return await super().score(verifier, response, ground_truth, messages)


def drawn_config(chance):
    steps_ahead = chance.choice([0, 1, 2, 3])
    resampling = (
        "dynamic" if steps_ahead == 0 and chance.random() < 0.5 else chance.choice(["active", "active", "none"])
    )
    return config(
        steps=5,
        groups_per_step=chance.choice([1, 2, 4]),
        sampling={"samples": 3, "max_tokens": 24},
        async_steps=steps_ahead,
        max_staleness=chance.choice([1, 2, 4]),
        beyond_staleness=chance.choice(["drop", "drop", "abort", "mask"]),
        checkpoint_every=chance.choice([1, 2]),
        resampling={"kind": resampling},
        replay={"size": 3, "max_replays": 2} if resampling == "none" else None,
        actors=ActorsConfig(
            count=chance.choice([1, 2, 5]),
            engine={"max_num_seqs": chance.choice([1, 4, 64])},
            prefetch=chance.choice([0, 2]),
            sync_every=chance.choice([1, 1, 2]),
            updates=chance.choice(["in_flight", "in_flight", "drained", "barrier", "static"]),
            max_restarts=1000,
            hang_seconds=200,
        ),
        learner={"max_restarts": 1000},
        prompts={
            "retirement": chance.choice([None, None, {"pass_rate": 0.6, "consecutive_groups": 2}]),
            "reroll": chance.choice([None, None, {"start_fraction": 0.2, "max_groups": 2}]),
        },
        validation=chance.choice([None, None, {"every": 2, "prompts": 2, "samples": 3}]),
        stall_seconds=20_000,
    )


class SlowDisk(RecordingLearner):
    """Its checkpoints are written while it takes steps, and now and then one is lost."""

    def __init__(self, learns, chance):
        super().__init__(learns)
        self.chance = chance

    async def wait_until_written(self):
        await asyncio.sleep(self.chance.uniform(0, 150))
        return self.chance.random() < 0.9


def played(folder, seed):
    """A run with its faults, started again each time that its driver is killed."""
    chance = random.Random(seed)
    has_episodes = random.Random(f"{seed} episodes").random() < 0.5
    options, poisoned = drawn_config(chance), set(chance.sample(range(1, PROMPTS + 1), chance.choice([0, 0, 1])))
    kills = chance.choice([0, 1, 2])

    async def learns(_step):
        nonlocal kills
        await asyncio.sleep(chance.uniform(1, 60))
        if kills and chance.random() < 0.2:
            kills -= 1
            raise KilledError
        if chance.random() < 0.05:
            raise LearnerLostError("connection closed by peer")

    while True:
        judge = SlowJudge(chance)
        run = Run(
            folder,
            options,
            prompts(PROMPTS, environment=ENVIRONMENT if has_episodes else None),
            learner=SlowDisk(learns, chance),
            judge=judge,
            episodes=episodes(lambda: FaultySession(chance)) if has_episodes else None,
            make_actor=lambda _: FaultyActor(chance, poisoned),
        )
        try:
            return run.play()
        except KilledError:
            continue


def check(run):
    options, rows = run.config, run.rows("trained", "zero_variance", "stale", "failed", "unused")
    again = run.rows("replayed")
    trained = [row for row in rows if row["fate"] == "trained"]
    first = {row["group"]: row["step"] for row in trained}
    assert all(first[row["group"]] < row["step"] for row in again)
    # where older tokens are masked, some of a group's may be younger
    counts = "last_version" if options.beyond_staleness == "mask" else "first_version"
    assert all(0 <= row["step"] - row[counts] <= options.max_staleness for row in trained + again)
    assert sum(row.get("replayed_groups", 0) for row in run.metrics()) == len(again)
    assert [row["step"] for row in run.metrics()] == list(range(options.steps))
    assert Counter(row["step"] for row in trained + again) == dict.fromkeys(
        range(options.steps), options.groups_per_step
    )
    assert [row["group"] for row in rows] == list(range(len(rows)))  # every group one fate, and none is missing
    for row in trained:
        assert len(row["scores"]) == 3
    after_the_last_step = run.controller.lifecycle.counters.generated_tokens
    generated = sum(row["generated_tokens"] for row in run.metrics()) + after_the_last_step
    assert generated == sum(tokens for row in rows for tokens in row["num_tokens"])  # trained or dropped, to the token
    written = Counter((row["group"], row["fate"], row["step"]) for row in run.rollouts())
    recorded = {(row["group"], row["fate"], row["step"]): len(row["num_tokens"]) for row in rows if row["num_tokens"]}
    assert written == recorded  # every finished response of every group, once
    drawn = Counter(row["prompt_id"] for row in rows if row["fate"] not in ("stale",))
    tries = options.prompts.reroll.max_tries if options.prompts.reroll else 0
    number = PROMPTS - (options.validation.prompts if options.validation else 0)
    if not options.prompts.retirement:  # where prompts retire, the others' turn comes sooner
        assert all(times <= 1 + tries + len(rows) // number for times in drawn.values())
    check_validation(run, drawn)
    assert all(actor.killed for actor in run.actors)


def check_validation(run, drawn):
    validation, policies = run.controller.validation, run.folder / "policies"
    best = validation.best
    if run.config.validation:
        validated = {prompt.prompt_id for prompt in split_validation(run.prompts, run.config)[1]}
        assert len(validated) == run.config.validation.prompts
        assert not validated & set(drawn)  # never trained on
        assert all(row["validation/version"] % 2 == 0 or row["step"] == 4 for row in validated_rows(run))
        assert best is None or validation.state()[str(best)] == max(validation.state().values())
        for row in validated_rows(run):
            assert validation.state()[f"{row['validation/version']:.0f}"] == row["validation/score"]
    states = [RunState.read(path) for path in (run.folder / "checkpoints").glob("step_*")]
    needed = {name for state in states for name in state.policies}  # the best one, of each checkpoint that stays
    assert not best or f"validated_{best:08d}" in needed
    weights = {path.name: (path / "model").read_text() for path in policies.glob("*")}
    assert weights == {name: f"weights {int(name.removeprefix('validated_'))}" for name in needed}


def validated_rows(run):
    return [row for row in run.metrics() if "validation/version" in row]


@pytest.mark.long
@pytest.mark.parametrize("hundred", HUNDREDS)
def test_whatever_happens_every_group_has_one_fate_and_every_step_its_groups(tmp_path, hundred):
    for seed in range(100 * hundred, 100 * (hundred + 1)):
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            check(played(folder, seed))
        except Exception as error:
            raise AssertionError(f"seed {seed}") from error
