"""The controller's end of the reward workers, with a real one in Ray where it matters who dies."""

import asyncio
import time

import pytest

from tasks.planning.virtual_clock import run_in_virtual_time
from tasks.recipe.run import RewardsConfig
from tasks.training.actors.rewards import JudgementError, RayJudge, RewardProcess
from tasks.verifiers import Score, VerifiersConfig
from tasks.verifiers.scores import FunctionFailure

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
    judge = RayJudge(Handle(Score.from_error("its worker died"), Score.binary(True, "")), RewardsConfig(retries=1))

    async def judged():
        return await judge.score("math", "1", "1", []), await judge.figures()

    score, figures = asyncio.run(judged())
    assert score.passed
    assert figures == {"math/calls": 2.0, "math/retried": 1.0}


class Endpoint:
    """A verifier of which judgements fail between two times, and those of the response `odd` always."""

    def __init__(self, away_from, away_until):
        self.away = (away_from, away_until)
        self.score = self

    async def remote(self, _verifier, response, *_):
        await asyncio.sleep(1)
        now = asyncio.get_running_loop().time()
        if response == "odd" or self.away[0] <= now < self.away[1]:
            return Score.from_error("its endpoint does not answer")
        return Score.binary(True, "")


def judged_one_after_another(judge, responses):
    """The judgements, or errors, of responses of which one comes every ten seconds; and when each was there."""

    async def after(seconds, response):
        await asyncio.sleep(seconds)
        try:
            result = await judge.score("chat", response, "1", [])
        except JudgementError as error:
            result = str(error)
        return result, asyncio.get_running_loop().time()

    async def main():
        return await asyncio.gather(*(after(10 * place, response) for place, response in enumerate(responses)))

    return run_in_virtual_time(main())


def test_responses_wait_for_a_verifier_that_is_away_for_minutes():
    judge = RayJudge(Endpoint(20, 320), RewardsConfig(retries=1))
    found = judged_one_after_another(judge, ["fine"] * 40)
    assert all(score.passed for score, _ in found)
    assert max(time for _, time in found) < 400  # the last of them come 400 s after the first


def test_a_response_that_cannot_be_judged_is_given_up_while_others_are_judged():
    judge = RayJudge(Endpoint(0, 0), RewardsConfig(retries=2))
    found = judged_one_after_another(judge, ["odd", *["fine"] * 10])
    error, time = found[0]
    assert error.startswith("chat: its endpoint does not answer (tried ")
    assert time < 100
    assert all(score.passed for score, _ in found[1:])


def test_patience_has_an_end():
    judge = RayJudge(Endpoint(0, 1e9), RewardsConfig(retries=1, patience_seconds=600))
    [(error, time)] = judged_one_after_another(judge, ["fine"])
    assert "does not answer (tried " in error
    assert 600 <= time < 640


def raised(may_pass=False):
    failure = FunctionFailure("mine.reward", "raised ValueError (mine.py, line 3)", may_pass)
    return Score.from_error("reward function mine.reward raised ValueError: odd (mine.py, line 3)", failure)


def test_an_exception_of_a_users_function_is_final_at_once():
    judge = RayJudge(Handle(raised()), RewardsConfig(retries=5))
    with pytest.raises(JudgementError, match=r"^reward function mine\.reward raised ValueError: odd") as error:
        asyncio.run(judge.score("function", "7", {}, []))
    assert error.value.failure == raised().failure


def test_a_users_function_whose_service_is_away_waits_for_it_and_is_named_once(caplog):
    scores = [raised(may_pass=True)] * 3
    judge = RayJudge(Handle(*scores, Score.binary(True, "")), RewardsConfig(retries=1))
    assert run_in_virtual_time(judge.score("function", "7", {}, [])).passed
    [line] = caplog.messages
    assert "tried again for at most 900 s (rewards.patience_seconds): reward function mine.reward raised" in line


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
