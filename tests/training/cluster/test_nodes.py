"""Nodes: the death of the controller's own is noticed."""

import asyncio

import psutil
import pytest

from tasks.training.cluster.nodes import NodeLostError, wait_until_node_dies
from tests.training.processes import role


@pytest.mark.complete
@pytest.mark.engine
def test_the_death_of_the_controllers_own_raylet_is_noticed_and_named():
    import ray

    ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)
    (raylet,) = (each for each in psutil.Process().children(recursive=True) if role(each) == "raylet")

    async def watched():
        watch = asyncio.create_task(wait_until_node_dies())
        await asyncio.sleep(1)
        assert not watch.done()
        raylet.kill()
        await watch

    try:
        with pytest.raises(NodeLostError, match="Ray counts the controller's node as dead"):
            asyncio.run(watched())
    finally:
        ray.shutdown()
