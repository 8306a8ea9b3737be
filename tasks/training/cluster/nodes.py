"""The nodes of a Ray cluster: a watch over the controller's own, and the files that all of them must see."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import threading
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tasks.failures import InfrastructureError, MistakeError
from tasks.storage.durable import whole

logger = logging.getLogger(__name__)

LOOK_SECONDS = 5.0
"""Seconds between two questions to Ray whether this node is alive."""


class NotSharedError(MistakeError):
    """A node does not see the run folder, through which checkpoints and weights pass."""


class NodeLostError(InfrastructureError):
    """Ray counts the controller's own node as dead, so that no process can be started on it."""


async def this_node_lives() -> None:
    """Wait until Ray counts the node of this process as dead; actors that are pinned to it can then not be replaced.

    Raises:
        NodeLostError: that has happened; the only way in which it ends.
    """
    import ray

    node = ray.get_runtime_context().get_node_id()
    loop, ended = asyncio.get_running_loop(), threading.Event()
    lost: asyncio.Future[None] = loop.create_future()

    def report() -> None:
        if not lost.done():
            lost.set_exception(
                NodeLostError(
                    "Ray counts the controller's node as dead: its raylet was killed, or gave no sign of life; the "
                    "next start goes on from the newest checkpoint"
                )
            )

    def look() -> None:
        while not ended.wait(LOOK_SECONDS):
            try:
                living = {alive["NodeID"] for alive in living_nodes()}
            except Exception as error:  # Ray may not answer for a while: no reason to end a run
                logger.warning("Ray does not say which nodes are alive: %s", error)
                continue
            if node not in living:
                with contextlib.suppress(RuntimeError):  # the loop is closed
                    loop.call_soon_threadsafe(report)
                return

    # Not one of asyncio's threads: without a GCS a question takes a minute, and the end of a run would wait for it.
    threading.Thread(target=look, daemon=True).start()
    try:
        await lost
    finally:
        ended.set()


def only_node() -> str | None:
    """Return the id of the cluster's node if it has only one; None: there are several."""
    nodes = living_nodes()
    return nodes[0]["NodeID"] if len(nodes) == 1 else None


def living_nodes() -> list[dict[str, Any]]:
    """Return Ray's descriptions of the nodes that it counts as alive."""
    import ray

    return [node for node in ray.nodes() if node["Alive"]]


def nodes_that_lack(path: Path) -> list[str]:
    """Return the addresses of the cluster's nodes on which `path` does not exist."""
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    nodes = living_nodes()
    if len(nodes) == 1:  # this one, and no process has to be started for it
        return [] if path.exists() else [nodes[0]["NodeManagerAddress"]]
    look = ray.remote(num_cpus=0)(os.path.exists)
    seen = ray.get(
        [
            look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)).remote(path)
            for node in nodes
        ]
    )
    return [node["NodeManagerAddress"] for node, sees in zip(nodes, seen, strict=True) if not sees]


def seen_by_all(model: Path, folder: Path, lacking: Callable[[Path], list[str]] = nodes_that_lack) -> Path:
    """Return a path of the initial model that every node sees: `model`, or a copy of it in the run folder.

    Args:
        model: folder of the initial model, on this node.
        folder: the run folder.
        lacking: returns the addresses of the nodes that do not see a path.

    Raises:
        NotSharedError: a node does not see the run folder; names the node and the option.
    """
    folder.mkdir(parents=True, exist_ok=True)
    witness = folder / f"seen.{uuid.uuid4().hex[:8]}"
    witness.touch()
    try:
        blind = lacking(witness)
    finally:
        witness.unlink()
    if blind:
        raise NotSharedError(
            f"learner, actors and controller are on several nodes, of which {', '.join(sorted(blind))} do not see "
            f"{folder}: RLVR_RUNS has to be a folder on storage that all of them share, and is "
            f"{os.environ.get('RLVR_RUNS', 'not set')}"
        )
    if not lacking(model / "config.json"):
        return model
    copy = folder / "model"
    if not copy.exists():
        with whole(copy) as partial:
            shutil.copytree(model, partial)
    return copy
