"""The controller's end of the reward workers, with a real one in Ray."""

import asyncio
import time

import pytest

from tasks.training.config import RewardsConfig
from tasks.training.rewards import RayJudge, RewardProcess
from tasks.verifiers import VerifiersConfig

pytestmark = pytest.mark.engine

HANGS = ("function", "fine", {"function": "tests.verifiers.rewards_of_a_user.hangs", "columns": {}}, [])


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
