"""The controller's end of an engine's process."""

import asyncio
import time
from types import SimpleNamespace

import pytest

from tasks.recipe.run import ActorsConfig, TrainingConfig
from tasks.training.actors.broadcast import RelayError
from tasks.training.actors.process import ActorLostError, ActorProcess, RayActor

pytestmark = pytest.mark.engine


@pytest.mark.complete
def test_an_engine_that_hangs_while_it_loads_is_lost_and_not_taken_for_one_that_waits_for_room():
    import ray

    class Hanging(ActorProcess):
        async def start(self, placed):
            time.sleep(600)  # nothing is answered meanwhile

    config = ActorsConfig(start_timeout_seconds=2)
    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        for _ in range(3):
            actor = RayActor(
                lambda: ray.remote(Hanging).options(max_concurrency=10).remote(TrainingConfig(), ""), config
            )
            with pytest.raises(
                ActorLostError, match=r"an actor's engine loads; no progress for actors\.start_timeout_seconds = 2"
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
    monkeypatch.setattr(processes, "RayActor", lambda _create, options, *_, **__: seeds.append(options.engine.seed))
    for begins_at in (0, 7):
        of_a_run = processes.RunProcesses(TrainingConfig(), tmp_path, tmp_path, begins_at, "a" * 56)
        for index in range(4):
            for attempt in range(3):
                of_a_run.make_actor(index, attempt)
    assert len(set(seeds)) == len(seeds) == 2 * 4 * 3


@pytest.mark.parametrize("head_dtype", ["model", "float32"])
def test_an_engine_starts_with_the_head_of_the_recipe(monkeypatch, tmp_path, head_dtype):
    import ray

    from tasks.training.actors.process import Engine
    from tasks.training.cluster import processes

    class AtHome:
        """Stands for Ray, and creates actors in this process."""

        def remote(self, actor):
            return SimpleNamespace(options=lambda **_: SimpleNamespace(remote=actor))

    started = []

    async def start(_model, _config, use):
        started.append(use.head_dtype)

    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(processes, "RayActor", lambda create, *_, **__: create())
    monkeypatch.setattr(Engine, "start", start)
    config = TrainingConfig(head_dtype=head_dtype)
    of_a_run = processes.RunProcesses(config, tmp_path, tmp_path, 0, "a" * 56)
    of_a_run._ray = AtHome()
    asyncio.run(of_a_run.make_actor(0, 0).start("a node"))
    assert started == [head_dtype]


@pytest.mark.parametrize("placement", ["shared", "time_shared", "apart"])
def test_a_replaced_engine_gets_the_kv_cache_size_of_the_first(monkeypatch, tmp_path, placement):
    import ray

    from tasks.training.cluster import processes

    class Handle:
        """A handle of an actor, whose engine has a KV cache of `size` bytes."""

        size = 5_000_000_000

        def __getattr__(self, name):
            async def answer(*_):
                return Handle.size if name == "kv_cache_memory" else 1

            return SimpleNamespace(remote=answer)

    given = []

    def actor(_create, options, *arguments, **keywords):
        given.append(options.engine.vllm)
        return RayActor(Handle, options, *arguments, **keywords)

    async def scenario():
        for index, attempt in ((0, 0), (0, 1), (0, 2), (1, 0)):
            await of_a_run.make_actor(index, attempt).start()
            Handle.size -= 1_000_000_000  # what vLLM would measure next to a rank

    monkeypatch.setattr(ray, "cluster_resources", dict)
    monkeypatch.setattr(processes, "RayActor", actor)
    monkeypatch.setattr(processes, "SharedPlacement", lambda _: SimpleNamespace(gpus=0.5))
    config = TrainingConfig(placement=placement, actors={"engine": {"vllm": {"max_num_batched_tokens": 512}}})
    of_a_run = processes.RunProcesses(config, tmp_path, tmp_path, 0, "a" * 56)
    asyncio.run(scenario())
    own, first = {"max_num_batched_tokens": 512}, {"kv_cache_memory_bytes": 5_000_000_000}
    assert given == ([own, own | first, own | first, own] if placement == "shared" else [own] * 4)


def test_an_engine_loads_when_its_node_is_prepared_and_is_lost_where_it_cannot_be():
    calls = []

    class Handle:
        """A handle of an actor on the node `a`, whose methods answer at once."""

        def __getattr__(self, name):
            async def answer(*arguments):
                calls.append((name, *arguments))
                return "a"

            return SimpleNamespace(remote=answer)

    async def prepare(node):
        await asyncio.sleep(0.01)
        calls.append(("prepared", node))

    async def fails(node):
        raise RelayError(f"node {node}: no space left")

    async def scenario():
        actor = RayActor(Handle, ActorsConfig(), prepare=prepare)
        await actor.start()
        assert calls == [("placed",), ("prepared", "a"), ("start", "a")]
        calls.clear()
        actor = RayActor(Handle, ActorsConfig(), prepare=prepare, loads_at_once=False)
        await asyncio.sleep(0.1)
        assert calls == []
        await actor.start()
        assert calls == [("placed",), ("prepared", "a"), ("start", "a")]
        with pytest.raises(ActorLostError, match="node a: no space left"):
            await RayActor(Handle, ActorsConfig(), prepare=fails).start()

    asyncio.run(scenario())
