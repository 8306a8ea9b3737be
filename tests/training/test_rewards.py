"""The controller's end of the reward workers, with a real one in Ray where it matters who dies."""

import asyncio
import time

import pytest

from tasks.training.config import RewardsConfig
from tasks.training.rewards import JudgementError, RayJudge, RewardProcess
from tasks.verifiers import Score, VerifiersConfig

HANGS = ("function", "fine", {"function": "tests.verifiers.rewards_of_a_user.hangs", "columns": {}}, [])


class Method:
    """A method of an actor that gives one of `results` after the other."""

    def __init__(self, *results):
        self.results = list(results)

    async def remote(self, *_arguments):
        return self.results.pop(0)


class Handle:
    """An actor whose judgements come as they are given."""

    def __init__(self, *scores):
        self.score = Method(*scores)
        self.figures = Method({"math/calls": 2.0})


def test_a_failed_judgement_is_tried_again_and_counted():
    judge = RayJudge(Handle(Score.unjudged("its worker died"), Score.binary(True, "")), RewardsConfig(retries=1))

    async def judged():
        return await judge.score("math", "1", "1", []), await judge.figures()

    score, figures = asyncio.run(judged())
    assert score.passed
    assert figures == {"math/calls": 2.0, "math/retried": 1.0}


def test_a_judgement_that_fails_every_time_says_why_and_how_often_it_was_tried():
    judge = RayJudge(Handle(*[Score.unjudged("its worker died")] * 3), RewardsConfig(retries=2))
    with pytest.raises(JudgementError, match=r"math: its worker died \(tried 3 times\)"):
        asyncio.run(judge.score("math", "1", "1", []))


@pytest.mark.complete
@pytest.mark.engine
def test_a_judgement_that_nobody_waits_for_is_not_repeated_when_its_process_ends(capfd):
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False)
    try:
        remote = ray.remote(RewardProcess).options(num_cpus=0, max_concurrency=10, max_restarts=-1, max_task_retries=3)
        process = remote.remote(RewardsConfig(workers=1), VerifiersConfig(), ["math"])
        judge = RayJudge(process, RewardsConfig())

        async def give_up():
            judgements = [asyncio.create_task(judge.score(*HANGS)) for _ in range(3)]
            await judge.figures()
            for each in judgements:
                each.cancel()
            return await asyncio.gather(*judgements, return_exceptions=True)

        assert all(isinstance(each, asyncio.CancelledError) for each in asyncio.run(give_up()))
        ray.kill(process)
        time.sleep(3)  # Ray tells of a failed call a moment later
    finally:
        ray.shutdown()
    assert "failed" not in "".join(capfd.readouterr())
