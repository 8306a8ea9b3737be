"""How new weights reach engines, each way that there is; and a run that goes on with other machines."""

import asyncio

import pytest

from tasks.recipe.run import ActorsConfig
from tests.training.stand_ins import RecordingLearner, Run, ScriptedActor, TableJudge, config, never, prompts


async def unequal(_actor, prompt):
    """Some responses take much longer than others."""
    await asyncio.sleep(7 + 10 * (prompt % 5 == 0))
    return ["right", "wrong"]


def run(folder, answer=unequal, **options):
    """A learner that takes 5 s for a step, and two engines."""
    actors = {"count": 2, **options.pop("actors", {})}
    more = {"steps": 8, "async_steps": 3, "max_staleness": 8, "stall_seconds": 1000, **options}
    learner = RecordingLearner(lambda _: asyncio.sleep(5))
    return Run(folder, config(actors=ActorsConfig(**actors), **more), prompts(100), answer, learner).play()


@pytest.mark.parametrize("updates", ["static", "barrier", "drained"])
def test_where_engines_are_drained_no_response_has_tokens_of_two_policies(tmp_path, updates):
    rows = run(tmp_path, actors={"updates": updates}).rollouts()
    assert len(rows) >= 8 * 2 * 2
    assert all(row["first_version"] == row["last_version"] for row in rows)
    assert max(row["last_version"] for row in rows) > 1


def test_with_static_batches_an_engine_without_room_in_the_cluster_holds_nobody_up(tmp_path):
    class WithoutRoom(ScriptedActor):
        async def placed(self):
            await never()

    def make_actor(index):
        return [ScriptedActor, WithoutRoom][index](unequal)

    options = config(actors=ActorsConfig(count=2, updates="static"), stall_seconds=1000)
    after = Run(tmp_path, options, prompts(100), make_actor=make_actor).play()
    assert len(after.metrics()) == options.steps


def test_in_flight_a_response_goes_on_under_the_next_policy(tmp_path):
    rows = run(tmp_path).rollouts()
    assert any(row["first_version"] < row["last_version"] for row in rows)


@pytest.mark.parametrize("keep", [True, False])
def test_the_engines_are_told_whether_to_keep_their_cache(tmp_path, keep):
    assert {actor.kept_cache for actor in run(tmp_path, actors={"keep_cache": keep}).actors} == {keep}


def test_a_run_goes_on_with_another_number_of_engines(tmp_path):
    run(tmp_path, steps=4, checkpoint_every=4)
    after = run(tmp_path, steps=8, checkpoint_every=4, actors={"count": 5})
    assert len(after.actors) == 5
    assert [row["step"] for row in after.metrics()] == list(range(8))
    trained = after.rows("trained")
    assert len({row["group"] for row in trained}) == len(trained) == 16


@pytest.mark.long
def test_a_response_is_judged_while_others_of_its_group_are_being_generated(tmp_path):
    class Watching(TableJudge):
        async def score(self, *about):
            score = await super().score(*about)
            judged.append(score)
            first.set()
            return score

    class OneByOne(ScriptedActor):
        async def generate(self, prompt_ids, sampling, seed):
            index = len(self.unanswered.setdefault(prompt_ids[0], []))
            self.unanswered[prompt_ids[0]].append(index)
            await (first.wait() if index else asyncio.sleep(1))
            return self.completion(["right", "wrong"][index % 2], self.version)

    judged, first = [], asyncio.Event()
    options = config(steps=1, groups_per_step=1)
    Run(tmp_path, options, prompts(1), judge=Watching(), make_actor=lambda _: OneByOne(None)).play()
    assert len(judged) >= 2  # the second response waited for the first one's judgement


def test_the_rewards_of_a_response_are_kept_with_it(tmp_path):
    rows = run(tmp_path, steps=2).rollouts()
    assert {(row["response"], row["score"], row["passed"]) for row in rows if row["fate"] == "trained"} == {
        ("right", 1.0, True),
        ("wrong", 0.0, False),
    }
