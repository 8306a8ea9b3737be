"""Lists the nodes of a Ray cluster, and monitors the controller's node."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from typing import Any

from tasks.failures import InfrastructureError, MistakeError

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Interval in seconds at which Ray is queried whether this node is alive."""


class NotSharedError(MistakeError):
    """A node with learner ranks does not see the run folder, and the run has no address on blob storage."""


class NodeLostError(InfrastructureError):
    """Ray considers the controller's node dead, so that no process can be started on it."""


async def wait_until_node_dies() -> None:
    """Wait until Ray considers the node of this process dead. Actors that are pinned to it then cannot be replaced.

    Raises:
        NodeLostError: Ray considers the node dead. The function ends in no other way.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    loop, ended = asyncio.get_running_loop(), threading.Event()
    lost: asyncio.Future[None] = loop.create_future()

    def report() -> None:
        if not lost.done():
            lost.set_exception(
                NodeLostError(
                    "Ray counts the controller's node as dead: its raylet was killed, or it did not respond; the "
                    "next start continues from the newest checkpoint"
                )
            )

    def watch() -> None:
        while not ended.wait(LOOK_SECONDS):
            try:
                living = {alive["NodeID"] for alive in list_living_nodes()}
            except Exception as error:  # Ray may not respond for a while, which does not end the run
                logger.warning("Ray does not say which nodes are alive: %s", error)
                continue
            if node not in living:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(report)
                return

    # Not one of asyncio's threads: without a GCS a query takes a minute, and the end of a run would wait for it.
    threading.Thread(target=watch, daemon=True).start()
    try:
        await lost
    finally:
        ended.set()


def find_only_node() -> str | None:
    """Return the id of the cluster's only node, or None if there are several."""
    nodes = list_living_nodes()
    return nodes[0]["NodeID"] if len(nodes) == 1 else None


def list_living_nodes() -> list[dict[str, Any]]:
    """Return Ray's descriptions of the nodes that it considers alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]
