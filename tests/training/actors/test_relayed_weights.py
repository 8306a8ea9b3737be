"""Weights on several nodes: each node has the newest by itself, keeps what is read, and drops what is old."""

import asyncio
import os
from pathlib import Path

import pytest

from tasks.training.actors.process import ActorLostError
from tasks.training.actors.relayed_weights import RelayedWeights
from tasks.training.learner.weight_files import BUFFERS
from tasks.training.runtime.timeouts import Limit
from tests.training.actors.file_relays import Nodes
from tests.training.stand_ins import run_in_virtual_time

PIECES, SIZE = 10, 1000
LIMIT = Limit(600, "actors.update_timeout_seconds")


class Cluster:
    """The weights of a run whose rank 0 is on the node `learner`."""

    def __init__(self, folder):
        self.nodes = Nodes(folder)
        self.weights = RelayedWeights(Path("/"), self.nodes.__getitem__, SIZE)

    async def publish(self, version, node="learner"):
        content = os.urandom(PIECES * SIZE)
        (self.nodes[node].root / self.weights.path(version).name).write_bytes(content)
        await self.weights.publish(version, node)
        return content

    def versions(self, node):
        return sorted(int(path.name[1:]) for path in self.nodes[node].root.glob("v" + "[0-9]" * 8))


def scenario(test):
    """A test that is given a cluster and runs in virtual time."""

    def run(tmp_path):
        async def body():
            cluster = Cluster(tmp_path)
            try:
                await test(cluster)
            finally:
                cluster.weights.close()

        run_in_virtual_time(body())

    run.__name__ = test.__name__
    return run


@scenario
async def test_each_version_crosses_into_each_node_once_and_the_old_ones_go(cluster):
    for node in ("a", "b"):
        cluster.weights.follow(node)
        cluster.weights.follow(node)
    for version in range(1, 21):
        content = await cluster.publish(version)
        for node in ("a", "b"):
            await cluster.weights.wait_for_newer(version - 1, node, LIMIT)
            with cluster.weights.open(node) as (newest, path):
                assert newest == version
                assert (cluster.nodes[node].root / path.name).read_bytes() == content
    await asyncio.sleep(1)
    for node in ("a", "b"):
        assert cluster.nodes[node].received.total() == 20 * PIECES
        assert cluster.versions(node) == [20]
    assert cluster.versions("learner") == [20]


@scenario
async def test_the_initial_checkpoint_has_no_file_and_is_brought_nowhere(cluster):
    cluster.weights.follow("a")
    await cluster.weights.publish(0, "")
    await asyncio.sleep(100)
    assert cluster.weights.find_newest_version("a") == -1
    await cluster.publish(1)
    await cluster.weights.wait_for_newer(0, "a", LIMIT)


@scenario
async def test_engines_on_the_node_of_the_learner_have_a_version_at_once(cluster):
    cluster.weights.follow("learner")
    await cluster.publish(1)
    assert cluster.weights.find_newest_version("learner") == 1
    await asyncio.sleep(1)
    assert cluster.nodes["learner"].received.total() == 0


@scenario
async def test_a_node_that_joins_gets_the_newest_alone(cluster):
    for version in (1, 2, 3):
        await cluster.publish(version)
    cluster.weights.follow("late")
    await cluster.weights.wait_for_newer(-1, "late", LIMIT)
    assert cluster.versions("late") == [3]
    assert cluster.nodes["late"].received.total() == PIECES


@scenario
async def test_a_version_stays_while_it_is_read_or_copied(cluster):
    cluster.nodes["slow"].seconds = 5.0
    cluster.weights.follow("fast")
    await cluster.publish(1)
    await cluster.weights.wait_for_newer(0, "fast", LIMIT)
    cluster.weights.follow("slow")
    await asyncio.sleep(3)
    with cluster.weights.open("fast"):
        await cluster.publish(2)
        await cluster.weights.wait_for_newer(1, "fast", LIMIT)
        await asyncio.sleep(0.1)
        assert cluster.versions("fast") == [1, 2]
        assert cluster.versions("learner") == [1, 2]  # the slow node is still fetching
    await asyncio.sleep(0.1)
    assert cluster.versions("fast") == [2]
    await cluster.weights.wait_for_newer(0, "slow", LIMIT)
    assert cluster.weights.find_newest_version("slow") == 1
    await cluster.weights.wait_for_newer(1, "slow", LIMIT)
    await asyncio.sleep(0.1)
    assert [cluster.versions(node) for node in ("fast", "slow", "learner")] == [[2], [2], [2]]


@scenario
async def test_a_node_that_is_late_takes_the_newest_next_and_delays_no_other(cluster):
    cluster.nodes["slow"].seconds = 10.0
    for node in ("fast", "slow"):
        cluster.weights.follow(node)
    for version in range(1, 6):
        await cluster.publish(version)
        async with asyncio.timeout(50):
            await cluster.weights.wait_for_newer(version - 1, "fast", LIMIT)
    await cluster.weights.wait_for_newer(4, "slow", LIMIT)
    assert cluster.nodes["slow"].received.total() == 2 * PIECES


@scenario
async def test_a_node_that_is_lost_in_mid_transfer_is_forgotten_and_the_others_go_on(cluster):
    for node in ("a", "b", "lost"):
        cluster.weights.follow(node)
    await cluster.publish(1)
    await asyncio.sleep(5)
    cluster.nodes["lost"].lose()
    for version in (2, 3, 4):
        async with asyncio.timeout(100):
            for node in ("a", "b"):
                await cluster.weights.wait_for_newer(version - 2, node, LIMIT)
        await cluster.publish(version)
    await cluster.weights.wait_for_newer(3, "a", LIMIT)
    await asyncio.sleep(300)
    assert cluster.versions("a") == cluster.versions("b") == cluster.versions("learner") == [4]


@scenario
async def test_a_version_that_a_lost_node_alone_was_being_brought_goes_with_it(cluster):
    cluster.nodes["lost"].seconds = 50.0
    for node in ("a", "lost"):
        cluster.weights.follow(node)
    for version in (1, 2):
        await cluster.publish(version)
        await cluster.weights.wait_for_newer(version - 1, "a", LIMIT)
    assert cluster.versions("learner") == [1, 2]
    cluster.nodes["lost"].lose()
    await asyncio.sleep(300)
    assert cluster.versions("learner") == [2]  # without another version


@scenario
async def test_the_learner_goes_on_on_another_node(cluster):
    cluster.weights.follow("a")
    await cluster.publish(1)
    await cluster.weights.wait_for_newer(0, "a", LIMIT)
    cluster.nodes["learner"].lose()
    await cluster.publish(2, "other")
    await cluster.weights.wait_for_newer(1, "a", LIMIT)
    await asyncio.sleep(1)
    assert cluster.versions("a") == cluster.versions("other") == [2]


@scenario
async def test_the_buffers_of_a_lost_rank_go_from_its_node_once_the_learner_is_on_another(cluster):
    buffers = cluster.nodes["learner"].root / BUFFERS
    buffers.mkdir()
    (buffers / "0").touch()
    await cluster.publish(1)
    await cluster.publish(2)
    await asyncio.sleep(1)
    assert buffers.exists()
    await cluster.publish(3, "other")
    await asyncio.sleep(1)
    assert not buffers.exists()


@scenario
async def test_an_actor_whose_node_gets_nothing_is_lost(cluster):
    cluster.weights.follow("a")
    cluster.nodes["learner"].hangs = True
    await cluster.publish(1)
    with pytest.raises(ActorLostError, match=r"above version 0; .* actors\.update_timeout_seconds = 600"):
        await cluster.weights.wait_for_newer(0, "a", LIMIT)
    cluster.nodes["learner"].hangs = False
    await cluster.weights.wait_for_newer(0, "a", LIMIT)
