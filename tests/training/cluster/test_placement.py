"""Ranks and engines on the nodes of a cluster: bundles by hand, and in Ray with GPUs that are pretended."""

import asyncio
import random
import time
from collections import Counter

import pytest

from tasks.config.loading import load_yaml, parse
from tasks.generation.config import EngineConfig
from tasks.inputs.files import Recipe
from tasks.machine.memory_limit import ShortOfMemoryError
from tasks.recipe.run import TrainingConfig
from tasks.sizing.roofline import GPUS as DATASHEETS
from tasks.sizing.roofline import KNOWN
from tasks.training.actors.process import ActorLostError
from tasks.training.cluster.placement import (
    Node,
    describe_lack,
    describe_shared_lack,
    find_cluster_gpu,
    make_engine_bundle,
    make_rank_bundle,
    make_shared_bundle,
    plan,
    resolve_auto_placement,
)
from tasks.training.cluster.pods import build_controller_pod, ray_job
from tasks.training.cluster.processes import ResourceError, RunProcesses, check_resources
from tasks.training.cluster.reservations import Placement
from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.config import VerifiersConfig
from tests.paths import ROOT

NODES, GPUS, CPUS = 10, 8, 16


def config(*, ranks, count, span, **options):
    return TrainingConfig.model_validate(
        {
            "learner": {"ranks": ranks, "cpus": 1, **options},
            "actors": {"count": count, "engine": {"tensor_parallel_size": span}},
        }
    )


def nodes(*gpus, cpus=64.0):
    """A head without GPUs, and nodes `n0`, `n1`, ... with these numbers of them."""
    return [Node("head", {"CPU": 4.0}), *(Node(f"n{i}", {"CPU": cpus, "GPU": float(n)}) for i, n in enumerate(gpus))]


@pytest.mark.parametrize(
    ("recipe", "num_nodes", "ranks", "engine", "engines"),
    [
        ("olmo3_think_32b", 28, [8] * 8, {"GPU": 8, "CPU": 1}, 20),
        ("dapo_qwen25_32b", 32, [8] * 16, {"GPU": 4, "CPU": 1}, 32),
    ],
)
def test_bundles_of_the_shipped_recipes(recipe, num_nodes, ranks, engine, engines):
    training = load_yaml(Recipe, ROOT / "workflows" / "recipes" / f"{recipe}.yaml")
    planned = plan(training, nodes(*[8] * num_nodes))
    assert planned.ranks == ranks
    assert planned.engines == engines
    assert make_rank_bundle(training.learner, 8) == {"GPU": 8, "CPU": 8}
    assert make_engine_bundle(training.actors) == engine
    assert {node.free["GPU"] for node in planned.nodes if "GPU" in node.free} == {0.0}
    assert describe_lack(training, nodes(*[8] * num_nodes), engines) == ""


def test_a_node_that_is_too_small_for_an_engine_is_named():
    run = config(ranks=64, count=20, span=8)
    need = describe_lack(run, nodes(*[8] * 27, 4), 20)
    assert need == (
        "actors.count = 20 engines of 8 GPUs (actors.cpus = 1 each): 19 fit next to learner.ranks = 64; node n27 has 4 "
        "GPUs and 64 CPUs free"
    )
    assert describe_lack(run, nodes(*[8] * 27, 4), 19) == ""


def test_totals_that_suffice_do_not_hide_that_no_node_holds_an_engine():
    assert ": 0 fit next to" in describe_lack(config(ranks=8, count=1, span=8), nodes(8, 4, 4), 1)


def test_a_learner_that_does_not_fit_is_named_with_its_nodes():
    need = describe_lack(config(ranks=24, count=1, span=1), nodes(8, 8, 4), 1)
    assert "learner.ranks = 24 (learner.cpus = 1 each) need 3 nodes, with 8 GPUs and 8 CPUs on each" in need
    assert need.endswith(": 2 fit; node n2 has 4 GPUs and 64 CPUs free")
    assert ": 0 fit" in describe_lack(
        config(ranks=8, count=1, span=1, cpus=16), nodes(8, 8), 1
    )  # 128 CPUs on a node of 64


def test_a_judge_that_the_run_serves_takes_its_gpus_from_one_node_before_engines_do():
    run = config(ranks=8, count=4, span=4)
    assert describe_lack(run, nodes(8, 8, 8), 4) == ""
    assert ": 3 fit next to learner.ranks = 8" in describe_lack(run, nodes(8, 8, 8), 4, judge_gpus=2)
    assert describe_lack(run, nodes(8, 8, 8, 8), 4, judge_gpus=2) == ""
    assert describe_lack(run, nodes(8, 4, 4), 1, judge_gpus=8).startswith(
        "the judge that the run serves needs 8 GPUs of one"
    )


@pytest.mark.parametrize(("node", "workers"), [("a" * 56, None), (None, 16)])
def test_the_process_of_a_judge_that_the_run_serves_reserves_its_gpus(monkeypatch, tmp_path, node, workers):
    """On one machine it has the cores that ranks and actors leave; elsewhere 8 for each GPU of the judge."""
    from types import SimpleNamespace

    import ray

    from tasks.training.cluster import processes

    given = {}
    handle = SimpleNamespace(remote=lambda *arguments: given.update(arguments=arguments))
    actor = SimpleNamespace(options=lambda **options: given.update(options) or handle)
    where = SimpleNamespace(choose_judge_strategy=lambda gpus: f"bundle of {gpus}")
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr(ray, "cluster_resources", lambda: {"GPU": 24.0})
    monkeypatch.setattr(ray, "remote", lambda _: actor)
    monkeypatch.setattr(ray, "get_runtime_context", lambda: SimpleNamespace(get_node_id=lambda: "b" * 56))
    monkeypatch.setattr(processes, "Placement", lambda _: where)
    of_run = RunProcesses(config(ranks=4, count=3, span=1), tmp_path, tmp_path, 0, node or RelaysAtHome())
    judge = JudgeConfig(model="m", revision="r", server={"tensor_parallel_size": 2})
    prompts = [SimpleNamespace(verifier="chat_open", ground_truth=None)]
    of_run.make_judge(VerifiersConfig(judge=judge), prompts)
    assert given["num_gpus"] == 2
    rewards, _, names, reserved = given["arguments"]
    assert (rewards.workers, names, reserved) == (workers, ["chat_open"], 7 if node else 0)
    assert given["scheduling_strategy"] == "bundle of 2" or node
    of_run.make_judge(VerifiersConfig(judge=judge), [SimpleNamespace(verifier="math", ground_truth="1")])
    assert given["num_gpus"] == 0


@pytest.mark.parametrize(
    ("ranks", "gpus", "expected"),
    [
        (12, (8, 8, 8), [8, 4]),
        (3, (8, 8), [3]),
        (16, (8, 4, 4, 4, 4), [4, 4, 4, 4]),  # there is one node of 8 alone
        (16, (8, 8, 4, 4), [8, 8]),
    ],
)
def test_ranks_fill_whole_nodes(ranks, gpus, expected):
    assert plan(config(ranks=ranks, count=1, span=1), nodes(*gpus)).ranks == expected


def test_a_cluster_is_checked_by_node_and_a_run_that_goes_on_needs_one_engine(monkeypatch, caplog):
    described = [
        {"Alive": True, "NodeManagerAddress": name, "Resources": {"CPU": 16.0, "GPU": gpus}}
        for name, gpus in (("n0", 8.0), ("n1", 8.0), ("n2", 4.0), ("n3", 4.0))
    ]
    monkeypatch.setattr("ray.nodes", lambda: described)
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 64.0, "GPU": 24.0})
    run = config(ranks=8, count=2, span=8)
    with pytest.raises(ResourceError, match=r"1 fit next to .* node n2 has 4 GPUs and 16 CPUs free, node n3 has 4"):
        check_resources(run)
    check_resources(run, resuming=True)
    assert "the run continues with the actors that fit" in caplog.text
    check_resources(config(ranks=8, count=4, span=4))


# In Ray


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of a head without GPUs and `NODES` nodes, whose GPUs are pretended."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    try:
        for _ in range(NODES):
            add_node(cluster)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def until(condition, seconds=60):
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.05)


def bundles(group):
    """The node of every bundle of a placement group."""
    from ray.util import placement_group_table

    return list(placement_group_table(group)["bundles_to_node_id"].values())


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
def test_every_order_of_the_engines_fills_the_cluster(cluster):
    import ray

    began, orders = time.monotonic(), 0
    for seed in range(50):
        if time.monotonic() - began > 60:
            break
        choose = random.Random(seed)
        span = choose.choice([2, 4, 8])
        ranks = GPUS * choose.randint(1, NODES - 1)
        placement = Placement(config(ranks=ranks, count=(NODES * GPUS - ranks) // span, span=span))
        placement.choose_rank_strategy(0)
        engines = [placement.engine() for _ in range((NODES * GPUS - ranks) // span)]

        async def reserve(placement=placement, engines=engines, choose=choose):
            with placement.keep_gpus_for_learner():
                await placement._learner.ready()
            await asyncio.gather(*(engine.wait_until_granted() for engine in choose.sample(engines, len(engines))))

        try:
            asyncio.run(asyncio.wait_for(reserve(), 30))
            of_learner = bundles(placement._learner)
            of_engines = [bundles(engine._group) for engine in engines]
            assert len(set(of_learner)) == len(of_learner) == ranks // GPUS
            assert all(len(of_one) == 1 for of_one in of_engines)
            assert not set(of_learner) & {node for [node] in of_engines}
            assert set(Counter(node for [node] in of_engines).values()) == {GPUS // span}
        finally:
            placement.shutdown()
        until(lambda: ray.available_resources().get("GPU") == NODES * GPUS)
        orders += 1
    print(f"{orders} orders, {time.monotonic() - began:.0f} s")
    assert orders >= 5


def rank_stand_in():
    """A class that stands for `LearnerRank`; a local one, which Ray sends by value."""

    class Rank:
        def __init__(self, *_):
            import ray

            context = ray.get_runtime_context()
            self._where = context.get_node_id(), "".join(context.get_accelerator_ids()["GPU"])
            self._number = None

        def location(self):
            return self._where

        def address(self):
            return "", 0

        def setup(self, _number, rank, _ranks, _address):
            self._number = rank

        def report(self):
            return self._number, *self._where

    return Rank


class RelaysAtHome:
    """Stands for `RelayNodes` where every node has the model."""

    async def prepare(self, _node):
        pass

    async def prepare_learner(self, _nodes, _folder, *, needs_folder):
        return set()


def engine_stand_in():
    """A class that stands for `ActorProcess`."""

    class EngineActor:
        def __init__(self, *_, **__):
            pass

        async def placed(self):
            pass

        async def start(self, _placed):
            pass

        async def kv_cache_memory(self):
            return 2**30

        def stop(self):
            pass

        def report(self):
            import ray

            context = ray.get_runtime_context()
            return context.get_node_id(), context.get_accelerator_ids()["GPU"]

    return EngineActor


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
def test_ranks_lie_on_whole_nodes_and_the_learner_gets_the_next_node_before_engines(cluster, tmp_path, monkeypatch):
    import ray

    from tasks.training.cluster import processes

    monkeypatch.setattr(processes, "LearnerRank", rank_stand_in())
    monkeypatch.setattr(processes, "ActorProcess", engine_stand_in())
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    # The cluster is full with 8 engines of 8 GPUs; the ninth has waited since before the node was lost.
    run = config(ranks=2 * GPUS, count=NODES - 1, span=GPUS)
    with pytest.raises(ResourceError, match=r"9 engines of 8 GPUs .* 8 fit next to .*; no node has a GPU free"):
        check_resources(run)
    check_resources(run, resuming=True)
    of_run = RunProcesses(run, tmp_path, tmp_path, 0, RelaysAtHome())

    async def begin_and_lose_a_node():
        learner = of_run.make_learner()
        of_run.start_actors()
        actors = [of_run.make_actor(index, 0) for index in range(NODES - 1)]
        await learner.start()
        waits = [asyncio.create_task(actor.placed()) for actor in actors]
        async with asyncio.timeout(120):
            while sum(task.done() for task in waits) < NODES - 2:
                await asyncio.sleep(0.1)
        [last] = [actor for actor, task in zip(actors, waits, strict=True) if not task.done()]
        first, second = check_ranks(learner)
        running = [actor._handle for actor in actors if actor is not last]
        engines = reports(running)
        assert len({node for node, _ in engines} - {first, second}) == NODES - 2
        assert all(len(gpus) == GPUS for _, gpus in engines)
        await lose_a_node_of_the_learner(cluster, learner, second, last)
        assert reports(running) == engines  # they were not touched
        add_node(cluster)  # Ray makes nodes in the main thread alone
        async with asyncio.timeout(60):
            await asyncio.gather(*waits)
        assert reports([last._handle])[0][0] not in check_ranks(learner)
        await last.kill()
        assert last._reservation._group is None

    try:
        asyncio.run(begin_and_lose_a_node())
    finally:
        of_run.shutdown()
    until(lambda: ray.available_resources().get("GPU") == (NODES + 1) * GPUS)


async def lose_a_node_of_the_learner(cluster, learner, lost, waiting):
    """Kill a node with ranks, and add one, which the new ranks get although the actor `waiting` waited before."""
    [kept_node] = set(check_ranks(learner)) - {lost}
    await asyncio.to_thread(lose, cluster, lost)
    restart = asyncio.create_task(learner.restart())
    async with asyncio.timeout(120):
        while waiting._reservation._group is not None:  # until the request is withdrawn
            await asyncio.sleep(0.1)
    assert not restart.done()
    add_node(cluster)  # Ray makes nodes in the main thread alone
    await asyncio.wait_for(restart, 120)
    now = check_ranks(learner)
    assert kept_node in now
    assert lost not in now
    assert waiting._handle is None


def reports(handles):
    import ray

    return ray.get([handle.report.remote() for handle in handles])


def check_ranks(learner):
    """Check that ranks 0 to 7 are GPUs 0 to 7 of one node, and 8 to 15 those of another; return the nodes."""
    numbers, where, gpus = zip(*reports(learner._ranks), strict=True)
    assert numbers == tuple(range(2 * GPUS))
    assert gpus == tuple(str(gpu) for gpu in range(GPUS)) * 2
    assert where == (where[0],) * GPUS + (where[GPUS],) * GPUS
    assert where[0] != where[GPUS]
    return where[0], where[GPUS]


def add_node(cluster):
    return cluster.add_node(num_cpus=CPUS, num_gpus=GPUS, object_store_memory=80_000_000)


def lose(cluster, node_id):
    """Kill a node's processes, and wait until Ray counts it as dead."""
    import ray

    [node] = [node for node in cluster.list_all_nodes() if node.node_id == node_id]
    cluster.remove_node(node, allow_graceful=False)
    until(lambda: not next(known["Alive"] for known in ray.nodes() if known["NodeID"] == node_id))


# On shared GPUs


def test_one_gpu_is_shared_where_both_would_need_two():
    run = config(ranks=1, count=1, span=1)
    assert run.gpus == 2
    shared = resolve_auto_placement(run, gpus=1)
    assert (shared.placement, shared.gpus) == ("shared", 1)
    assert shared.actors.engine.gpu_memory_utilization == 0.4
    assert (shared.engine_share, shared.compute_rank_share(80e9, 1e9)) == (0.4, pytest.approx(0.55))
    for gpus in (0, 2):  # none that could be shared, and enough
        apart = resolve_auto_placement(run, gpus)
        assert apart.placement == "apart"
        assert apart.actors.engine.gpu_memory_utilization == 0.9
        assert (apart.engine_share, apart.compute_rank_share(24e9, 1e9)) == (0.9, 1.0)
    full = config(ranks=1, count=1, span=1)
    full = full.model_copy(
        update={"actors": full.actors.model_copy(update={"engine": EngineConfig(gpu_memory_utilization=0.9)})}
    )
    assert resolve_auto_placement(full, gpus=1).placement == "apart"
    assert resolve_auto_placement(config(ranks=1, count=2, span=1), gpus=2).placement == "apart"


@pytest.mark.parametrize(
    ("memory", "layer", "reserved"),
    [
        (24e9, 0.27e9, 1.77e9),  # Qwen2.5-0.5B on an L4: 7.4%
        (24e9, 1.09e9, 2.59e9),  # 7 billion parameters, whose embedding is the largest layer
        (80e9, 1.09e9, 4e9),  # 5% of a large GPU are enough
    ],
)
def test_two_contexts_and_the_largest_layer_are_reserved_on_a_shared_gpu(memory, layer, reserved):
    run = TrainingConfig(placement="shared", actors={"engine": {"gpu_memory_utilization": 0.35}})
    assert run.compute_rank_share(memory, layer) * memory == pytest.approx(0.65 * memory - reserved)


@pytest.mark.parametrize(
    ("ranks", "count", "engine", "message"),
    [
        (1, 2, {}, r"actors.count \(2\) must be learner.ranks \(1\)"),
        (1, 1, {"tensor_parallel_size": 2}, r"an engine run on one GPU \(tensor_parallel_size \(2\)\)"),
        (1, 1, {"gpu_memory_utilization": 0.9}, "leaves 5% of a GPU to the learner rank on it; .* it is 0.4"),
    ],
)
def test_gpus_that_cannot_be_shared_are_refused(ranks, count, engine, message):
    options = {"learner": {"ranks": ranks}, "actors": {"count": count, "engine": engine}}
    with pytest.raises(ValueError, match=message):
        TrainingConfig.model_validate(options | {"placement": "shared"})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"actors": {"count": 2}}, r"placement = time_shared: .* actors.count \(2\) must be learner.ranks \(1\)"),
        ({"actors": {"engine": {"tensor_parallel_size": 2}}}, r"an engine run on one GPU \(tensor_parallel_size \(2"),
        ({"actors": {"engine": {"vllm": {"data_parallel_size": 2}}}}, "an engine run on one GPU"),
        ({"actors": {"engine": {"gpu_memory_utilization": 0.95}}}, "= 0.95 leaves too little .* it is 0.9"),
        ({"learner": {"zero_stage": 3}}, "learner.zero_stage = 3, .* torch's AdamW; set zero_stage to 2"),
        (
            {"actors": {"engine": {"vllm": {"enable_sleep_mode": True}}}},
            "enable_sleep_mode is not passed to vLLM: `placement: time_shared` of the recipe puts engines to sleep",
        ),
    ],
)
def test_turns_that_cannot_be_taken_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        TrainingConfig.model_validate(options | {"placement": "time_shared"})


def test_turns_without_a_gpu_are_refused_in_the_file_and_on_a_machine(monkeypatch):
    with pytest.raises(ValueError, match=r"placement = time_shared: .* and cluster\.gpus_per_node is 0"):
        parse(Recipe, '{"extends": "quickstart", "placement": "time_shared", "cluster": {"gpus_per_node": 0}}')
    run = resolve_auto_placement(TrainingConfig(placement="time_shared"), gpus=0)
    assert run.placement == "time_shared"
    monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": 64.0})
    with pytest.raises(
        ResourceError, match="placement = time_shared: the cluster has no GPU; placement = auto needs none"
    ):
        check_resources(run)


def test_the_former_name_of_time_sharing_is_refused_with_the_new_one():
    with pytest.raises(ValueError, match="turns is called time_shared now"):
        TrainingConfig(placement="turns")


def test_in_turns_engine_and_rank_have_nearly_all_of_the_gpu():
    run = resolve_auto_placement(TrainingConfig(placement="time_shared"), gpus=1)
    assert (run.gpus, run.shares_gpus, run.takes_turns) == (1, True, True)
    assert (run.engine_share, run.compute_rank_share(24e9, 1e9)) == (0.9, 0.9)
    assert run.actors.engine.gpu_memory_utilization == 0.9
    assert describe_shared_lack(run, nodes(1)) == ""
    assert describe_shared_lack(run, nodes(0)).startswith("placement = time_shared: learner.ranks = 1")


def test_auto_takes_turns_where_they_alone_are_known_to_fit_and_logs_it(caplog):
    run, model = TrainingConfig(), KNOWN["Qwen2.5-1.5B"]
    assert resolve_auto_placement(run, 1, model, DATASHEETS["L40S"]).placement == "time_shared"
    assert "do not fit on a GPU of 48 GB at the same time: they take turns (placement = time_shared)" in caplog.text
    caplog.clear()
    assert resolve_auto_placement(run, 1, model, DATASHEETS["H100"]).placement == "shared"  # both fit
    assert resolve_auto_placement(run, 1, model, DATASHEETS["L4"]).placement == "shared"  # nothing fits
    assert resolve_auto_placement(run, 1, model, None).placement == "shared"
    assert resolve_auto_placement(run, 2, model, DATASHEETS["L40S"]).placement == "apart"
    assert resolve_auto_placement(config(ranks=1, count=2, span=1), 2, model, DATASHEETS["L40S"]).placement == "apart"
    assert not caplog.text


@pytest.mark.parametrize(
    ("kinds", "memory"),
    [
        (["H100"], 80e9),
        (["L4", "L4"], 24e9),
        (["GeForce-RTX-5090"], 32e9),
        (["L4", "H100"], None),
        (["A100", "A100"], None),  # of 40 or 80 GB
        (["MI300X"], None),
        ([], None),
    ],
)
def test_the_gpu_of_a_cluster_is_known_by_the_name_that_ray_has_for_it(monkeypatch, kinds, memory):
    described = [
        {"Alive": True, "NodeManagerAddress": "n", "Resources": {"GPU": 1.0, f"accelerator_type:{kind}": 1.0}}
        for kind in kinds
    ]
    monkeypatch.setattr("ray.nodes", lambda: described)
    gpu = find_cluster_gpu()
    assert (gpu.memory if gpu else None) == memory


@pytest.mark.parametrize(
    ("names", "memory"),
    [
        (["NVIDIA A100-SXM4-40GB"] * 2, 40e9),
        (["NVIDIA RTX 6000 Ada Generation"], 48e9),
        (["NVIDIA L4", "NVIDIA H100 80GB HBM3"], None),
        ([], None),
    ],
)
def test_the_gpu_of_one_machine_is_known_by_the_name_that_its_driver_has(monkeypatch, names, memory):
    one = {"Alive": True, "NodeManagerAddress": "n", "Resources": {"GPU": 1.0, "accelerator_type:A100": 1.0}}
    monkeypatch.setattr("ray.nodes", lambda: [one])
    monkeypatch.setattr("tasks.training.cluster.placement.list_gpu_names", lambda: names)
    gpu = find_cluster_gpu()
    assert (gpu.memory if gpu else None) == memory


def test_the_first_engines_sleep_before_the_learner_starts_and_one_that_is_lost_has_left_the_gpu():
    class Loading:
        def __init__(self, error=None):
            self.error = error
            self.calls = []

        async def placed(self):
            self.calls.append("placed")

        async def start(self):
            self.calls.append("start")
            if self.error:
                raise self.error

        async def sleep(self):
            self.calls.append("sleep")

        async def kill(self):
            self.calls.append("kill")

    def loaded(placement, *actors):
        of_run = RunProcesses.__new__(RunProcesses)
        of_run._config, of_run._shared = TrainingConfig(placement=placement), object()
        of_run._loading = dict(enumerate(actors))
        asyncio.run(of_run.wait_until_engines_loaded())
        return [actor.calls for actor in actors], list(of_run._loading)

    lost = ActorLostError("no GPU memory")
    calls, waiting = loaded("time_shared", Loading(), Loading(lost))
    assert (calls, waiting) == ([["placed", "start", "sleep"], ["placed", "start", "kill"]], [0])
    lost.__cause__ = ShortOfMemoryError("no GPU memory")
    assert loaded("shared", Loading(lost)) == ([["placed", "start", "kill"]], [0]), "the fleet counts its start"
    assert loaded("shared", Loading()) == ([["placed", "start"]], [0])


def test_the_pod_of_shared_gpus_has_one_for_every_rank():
    recipe = load_yaml(Recipe, ROOT / "workflows" / "recipes" / "one_gpu.yaml")
    assert build_controller_pod(recipe, recipe.cluster).gpus == 1
    several = recipe.model_copy(
        update={
            "learner": recipe.learner.model_copy(update={"ranks": 16}),
            "actors": recipe.actors.model_copy(update={"count": 16}),
        }
    )
    job = ray_job(several, recipe.cluster.model_copy(update={"gpus_per_node": 8}))
    assert [(group.group_name, group.replicas) for group in job.worker_node_config] == [("learner", 2)]


def test_a_node_with_too_few_cores_for_a_rank_and_its_engine_is_no_place_for_both():
    run = resolve_auto_placement(config(ranks=3, count=3, span=1), gpus=3)
    assert make_shared_bundle(run) == {"GPU": 1, "CPU": 2}
    assert describe_shared_lack(run, nodes(2, 1, cpus=4.0)) == ""
    assert describe_shared_lack(run, nodes(2, 1, cpus=3.0)).endswith("need 3 GPUs with 2 CPUs each: 2 fit")


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
def test_every_shared_gpu_has_one_rank_and_one_engine(cluster, tmp_path, monkeypatch):
    import ray

    from tasks.training.cluster import processes

    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    monkeypatch.setattr(processes, "LearnerRank", rank_stand_in())
    monkeypatch.setattr(processes, "ActorProcess", engine_stand_in())
    ranks = 2 * GPUS
    run = resolve_auto_placement(
        config(ranks=ranks, count=ranks, span=1).model_copy(update={"placement": "shared"}), NODES * GPUS
    )
    check_resources(run)
    of_run = RunProcesses(run, tmp_path, tmp_path, 0, RelaysAtHome())

    async def begin():
        of_run.start_actors()
        await of_run.wait_until_engines_loaded()
        actors = [of_run.make_actor(index, 0) for index in range(ranks)]
        learner = of_run.make_learner()
        await learner.start()
        engines = [(node, gpu) for node, [gpu] in reports([actor._handle for actor in actors])]
        of_ranks = [(node, gpu) for _, node, gpu in reports(learner._ranks)]
        assert sorted(engines) == of_ranks
        assert len(set(of_ranks)) == ranks
        assert len({node for node, _ in of_ranks}) == 2

    try:
        asyncio.run(begin())
    finally:
        of_run.shutdown()
    until(lambda: ray.available_resources().get("GPU") == ray.cluster_resources()["GPU"])
