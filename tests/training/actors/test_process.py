"""The controller's end of an engine's process."""

import asyncio
import time

import pytest

from tasks.training.actors.process import ActorLostError, ActorProcess, RayActor
from tasks.training.config import ActorsConfig, TrainingConfig

pytestmark = pytest.mark.engine


@pytest.mark.complete
def test_an_engine_that_hangs_while_it_loads_is_lost_and_not_taken_for_one_that_waits_for_room():
    import ray

    class Hanging(ActorProcess):
        async def start(self, placed):
            time.sleep(600)  # nothing is answered meanwhile

    config = ActorsConfig(start_timeout_seconds=2)
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        for _ in range(3):
            actor = RayActor(lambda: ray.remote(Hanging).options(max_concurrency=10).remote("", config), config)
            with pytest.raises(
                ActorLostError, match=r"an actor's engine loads; nothing came for actors\.start_timeout_seconds = 2"
            ):
                asyncio.run(actor.start())
            ray.kill(actor._handle)
    finally:
        ray.shutdown()


def test_no_two_engines_of_a_run_draw_from_the_same_seed(monkeypatch, tmp_path):
    import ray

    from tasks.training.cluster import processes

    seeds = []
    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(processes, "RayActor", lambda _create, options, *_: seeds.append(options.engine.seed))
    for begins_at in (0, 7):
        of_a_run = processes.RunProcesses(TrainingConfig(), tmp_path, begins_at, node=None)
        for index in range(4):
            for attempt in range(3):
                of_a_run.make_actor(index, attempt)
    assert len(set(seeds)) == len(seeds) == 2 * 4 * 3
