"""Machines in groups: what lies on which by hand, in a check before a run, and in Ray with GPUs that are pretended."""

import asyncio

import pytest

from tasks.machine.groups import ACTORS, LEARNER, OF_A_MACHINE, RESOURCES, are_grouped
from tasks.machine.resources import describe_free_resources
from tasks.recipe.run import TrainingConfig
from tasks.training.cluster.placement import (
    Node,
    describe_lack,
    describe_shared_lack,
    limit_to_group,
    make_rank_resources,
    plan,
    resolve_auto_placement,
)
from tasks.training.cluster.processes import ResourceError, RunProcesses, check_resources
from tasks.verifiers.chat.config import JudgeConfig
from tasks.verifiers.config import VerifiersConfig
from tests.training.cluster.test_placement import (
    CPUS,
    GPUS,
    RelaysAtHome,
    bundles,
    config,
    engine_stand_in,
    rank_stand_in,
    reports,
    until,
)

JUDGED = VerifiersConfig(judge=JudgeConfig(model="m", revision="r", server={"tensor_parallel_size": 2}))


def machines(*, learner=(), actors=(), cpus=64.0):
    """A head without GPUs, and machines of both groups with these numbers of them."""
    head = Node("head", {"CPU": 4.0})
    numbers = [(LEARNER, number) for number in learner] + [(ACTORS, number) for number in actors]
    return [head, *(machine(f"n{index}", *group, cpus) for index, group in enumerate(numbers))]


def machine(name, group, gpus, cpus):
    return Node(name, {"CPU": cpus, "GPU": float(gpus), RESOURCES[group]: OF_A_MACHINE})


def shared(*, ranks):
    return resolve_auto_placement(
        config(ranks=ranks, count=ranks, span=1).model_copy(update={"placement": "shared"}), gpus=ranks
    )


def test_nodes_without_a_groups_resource_are_asked_for_none():
    nodes = [Node("head", {"CPU": 4.0}), Node("n0", {"GPU": 8.0, "CPU": 64.0})]
    assert limit_to_group({"GPU": 1}, LEARNER, nodes) == {"GPU": 1}
    assert make_rank_resources(config(ranks=1, count=1, span=1), nodes, gpu=True) == {"GPU": 1, "CPU": 1}
    [_, only] = machines(actors=[8])
    assert limit_to_group({"GPU": 1}, LEARNER, [only]) == {"GPU": 1}, "the only node has all processes"


def test_a_group_that_is_lost_is_asked_for_nevertheless():
    nodes = machines(actors=[8])
    assert limit_to_group({"GPU": 1}, LEARNER, nodes) == {"GPU": 1, "rlvr_learner": 0.001}
    assert not are_grouped(node.free for node in machines())


def test_ranks_and_engines_lie_on_machines_of_their_own_group():
    run = config(ranks=12, count=3, span=4)
    assert describe_lack(run, machines(learner=[8, 8], actors=[8, 8]), 3) == ""
    planned = plan(run, machines(learner=[8, 8], actors=[8, 8]))
    assert planned.ranks == [8, 4]
    left = [(node.free.get(RESOURCES[LEARNER], 0) > 0, node.free["GPU"]) for node in planned.nodes[1:]]
    assert sorted(left) == [(False, 0), (False, 4), (True, 0), (True, 4)]
    assert describe_lack(run, machines(learner=[8, 8], actors=[8]), 3).startswith("actors.count = 3 engines of 4 GPUs")
    assert describe_lack(run, machines(learner=[8, 8], actors=[8]), 3).endswith(
        ": 2 fit next to learner.ranks = 12; node n1 of the group learner has 4 GPUs and 60 CPUs free"
    )


def test_a_lost_machine_is_waited_for_by_its_own_group():
    run = config(ranks=16, count=2, span=8)
    need = describe_lack(run, machines(learner=[8], actors=[8, 8, 8]), 2)
    assert "need 2 nodes, with 8 GPUs and 8 CPUs on each but perhaps the last: 1 fit; " in need
    assert need.count("of the group actors has 8 GPUs and 64 CPUs free") == 3
    assert ": 0 fit; " in describe_lack(run, machines(actors=[8, 8, 8, 8]), 2)
    assert ": 1 fit next to learner.ranks = 16" in describe_lack(run, machines(learner=[8, 8, 8], actors=[8]), 2)


def test_the_judge_lies_on_gpus_that_ranks_leave_and_else_with_the_actors():
    beside_ranks, beside_engines = config(ranks=4, count=8, span=1), config(ranks=8, count=6, span=1)
    nodes = machines(learner=[8], actors=[8])
    assert plan(beside_ranks, nodes, 2).judge == LEARNER
    assert plan(beside_engines, nodes, 2).judge == ACTORS
    assert (
        describe_lack(beside_ranks, nodes, 8, judge_gpus=2)
        == describe_lack(beside_engines, nodes, 6, judge_gpus=2)
        == ""
    )
    assert ": 6 fit next to" in describe_lack(config(ranks=8, count=7, span=1), nodes, 7, judge_gpus=2)
    assert plan(beside_engines, nodes).judge is None


def test_what_shares_gpus_lies_on_machines_of_the_learner():
    assert describe_shared_lack(shared(ranks=16), machines(learner=[8, 8])) == ""
    assert describe_shared_lack(shared(ranks=16), machines(learner=[8], actors=[8])).endswith(": 8 fit")
    assert describe_shared_lack(shared(ranks=16), machines(learner=[8, 8], actors=[8]), judge_gpus=4) == ""
    assert describe_shared_lack(shared(ranks=12), machines(learner=[8, 8]), judge_gpus=2) == ""
    assert "next to the 16 GPUs" in describe_shared_lack(shared(ranks=16), machines(learner=[8, 8]), judge_gpus=4)


def test_without_gpus_a_group_that_is_too_small_is_named_before_the_run(monkeypatch):
    def cluster(*nodes):
        described = [{"Alive": True, "NodeManagerAddress": node.name, "Resources": node.free} for node in nodes]
        monkeypatch.setattr("ray.nodes", lambda: described)
        monkeypatch.setattr("ray.cluster_resources", lambda: {"CPU": sum(node.free["CPU"] for node in nodes)})

    run = TrainingConfig.model_validate({"learner": {"ranks": 2, "cpus": 2}, "actors": {"count": 2, "cpus": 1}})
    cluster(*machines(learner=[0, 0], actors=[0], cpus=2.0))
    check_resources(run)
    cluster(*machines(learner=[0], actors=[0, 0, 0], cpus=2.0))
    with pytest.raises(ResourceError) as refused:
        check_resources(run)
    assert str(refused.value) == "learner.ranks = 2 (learner.cpus = 2 each): 1 fit on the machines of group learner"
    cluster(*machines(learner=[0, 0, 0], actors=[0], cpus=1.0))
    with pytest.raises(ResourceError, match=r"learner.ranks = 2 \(learner.cpus = 2 each\): 0 fit"):
        check_resources(run)
    small = run.model_copy(update={"learner": run.learner.model_copy(update={"cpus": 1})})
    with pytest.raises(ResourceError, match=r"actors.count = 2 \(actors.cpus = 1 each\): 1 fit on the machines of gr"):
        check_resources(small)
    check_resources(small, resuming=True)


def test_what_waits_is_told_how_many_machines_each_group_has(monkeypatch):
    total = {"CPU": 6.0, "GPU": 8.0, "rlvr_actors": 2.0}
    monkeypatch.setattr("ray.cluster_resources", lambda: total)
    monkeypatch.setattr("ray.available_resources", lambda: {"CPU": 1.0, "rlvr_actors": 1.998})
    assert asyncio.run(describe_free_resources()) == (
        "1 of 6 CPUs are free and 0 of 8 GPUs are free; machines by group: learner 0, actors 2"
    )
    del total["rlvr_actors"]
    assert asyncio.run(describe_free_resources()) == "1 of 6 CPUs are free and 0 of 8 GPUs are free"


# In Ray


@pytest.fixture(scope="module")
def cluster():
    """A Ray cluster of a head, two machines of actors and two of the learner."""
    import ray
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "num_gpus": 0})
    try:
        for group in (ACTORS, ACTORS, LEARNER, LEARNER):
            add_machine(cluster, group)
        ray.init(address=cluster.address, log_to_driver=False)
        cluster.wait_for_nodes()
        yield cluster
    finally:
        ray.shutdown()
        cluster.shutdown()


def add_machine(cluster, group):
    return cluster.add_node(
        num_cpus=CPUS, num_gpus=GPUS, resources={RESOURCES[group]: OF_A_MACHINE}, object_store_memory=80_000_000
    )


def judge_stand_in():
    """A class that stands for `RewardProcess`."""

    class Judge:
        def __init__(self, *_):
            pass

        def report(self):
            import ray

            return ray.get_runtime_context().get_node_id(), len(ray.get_runtime_context().get_accelerator_ids()["GPU"])

    return Judge


def nodes_of(group):
    """The ids of the living machines of a group."""
    import ray

    return {node["NodeID"] for node in ray.nodes() if node["Alive"] and RESOURCES[group] in node["Resources"]}


def chat_prompt():
    from types import SimpleNamespace

    return SimpleNamespace(verifier="chat_open", ground_truth=None)


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
@pytest.mark.parametrize(
    ("placement", "ranks", "count", "judge"),
    [("apart", 12, 8, LEARNER), ("apart", 16, 14, ACTORS), ("shared", 16, 16, ACTORS), ("shared", 10, 10, LEARNER)],
)
def test_each_lies_on_its_groups_machines_and_the_judge_where_it_is_planned(
    cluster, tmp_path, monkeypatch, placement, ranks, count, judge
):
    import ray

    from tasks.training.cluster import processes

    monkeypatch.setattr(processes, "LearnerRank", rank_stand_in())
    monkeypatch.setattr(processes, "ActorProcess", engine_stand_in())
    monkeypatch.setattr(processes, "RewardProcess", judge_stand_in())
    monkeypatch.setattr("torch.backends.cuda.is_built", lambda: True)
    run = config(ranks=ranks, count=count, span=1).model_copy(update={"placement": placement})
    run = resolve_auto_placement(run, 4 * GPUS)
    check_resources(run, judge_gpus=2)
    of_run = RunProcesses(run, tmp_path, tmp_path, 0, RelaysAtHome())

    async def begin():
        client = of_run.make_judge(JUDGED, [chat_prompt()])
        learner = of_run.make_learner()
        of_run.start_actors()
        await of_run.wait_until_engines_loaded()
        actors = [of_run.make_actor(index, 0) for index in range(count)]
        await learner.start()
        async with asyncio.timeout(120):
            await asyncio.gather(*(actor.placed() for actor in actors))
        assert {node for _, node, _ in reports(learner._ranks)} == nodes_of(LEARNER)
        of_engines = nodes_of(ACTORS if placement == "apart" else LEARNER)
        assert {node for node, _ in reports([actor._handle for actor in actors])} <= of_engines
        [(node, gpus)] = reports([client._handle])
        assert (node in nodes_of(judge), gpus) == (True, 2)

    try:
        asyncio.run(begin())
    finally:
        of_run.shutdown()
    until(lambda: ray.available_resources().get("GPU") == 4 * GPUS)


@pytest.mark.complete
@pytest.mark.long
@pytest.mark.engine
def test_bundles_of_a_lost_machine_wait_for_one_of_the_same_group(cluster, tmp_path):
    import ray

    from tasks.training.cluster.reservations import Placement

    run = config(ranks=2 * GPUS, count=1, span=GPUS)
    placement = Placement(run)
    placement.choose_rank_strategy(0)
    engine = placement.engine()

    async def begin():
        with placement.keep_gpus_for_learner():
            await placement._learner.ready()
        await engine.wait_until_granted()

    asyncio.run(asyncio.wait_for(begin(), 60))
    try:
        lost = sorted(nodes_of(LEARNER))[0]
        [node] = [node for node in cluster.list_all_nodes() if node.node_id == lost]
        cluster.remove_node(node, allow_graceful=False)
        until(lambda: lost not in nodes_of(LEARNER))
        add_machine(cluster, ACTORS)
        cluster.wait_for_nodes()
        with pytest.raises(ray.exceptions.GetTimeoutError):
            ray.get(placement._learner.ready(), timeout=5)
        add_machine(cluster, LEARNER)
        until(lambda: set(bundles(placement._learner)) == nodes_of(LEARNER))
        assert set(bundles(engine._group)) <= nodes_of(ACTORS)
    finally:
        placement.shutdown()
