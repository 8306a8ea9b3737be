"""Tells the driver of a run about processes that were killed for lack of memory on the nodes of a Ray cluster.

Kills by the kernel are counted by the control group of each node, which a process on the node reads (`NodeProcess`).
Ray's own monitor kills before the kernel would. Its kills are in Ray's table of processes, with the memory and the
largest processes of the node. The table also contains kills of processes that Ray restarts without a failed call, and
kills that include the `NodeProcess`.
"""

from __future__ import annotations

import asyncio
import logging
import re
from typing import Protocol

from tasks.failures import InfrastructureError, one_line
from tasks.machine.memory_limit import GIB, HERE, Process, Reading, watch

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 8.0
"""Maximum seconds to wait for the reading of a node. A `NodeProcess` that was killed is restarted within this time."""

_KILL = re.compile(r"due to the node running low on memory\. Memory on the node \(IP: ([^,]+), .* / ([\d.]+)GB limit")
"""Matches Ray's message about a kill. Group 1 is the address of the node, group 2 its memory in GiB."""
_KILLED = re.compile(r"(?m)^Selected to kill: .* task name=([^,]+), .*pid=(\d+), actual memory used=([\d.]+)GB")
"""Matches a process that was killed. The groups are its class and method, its id and its memory in GiB."""
_USER = re.compile(r"(?m)^(\d+)\t([\d.]+)\t(.+)$")
"""Matches one of the largest processes. The groups are its id, its memory in GiB and its command."""
_DIED = re.compile(r"(?m)^\tip: (.+)$")
"""Matches a line of Ray's message about a process that ended in another way. Group 1 is the address of its node."""


class NodeProcess(Protocol):
    """A process that reads the memory of its node. `name` is the node's address."""

    name: str

    async def memory(self) -> Reading:
        """Return the reading.

        Raises:
            InfrastructureError: the process does not answer.
        """


class NodeProcesses(Protocol):
    """One `NodeProcess` for each node of a cluster."""

    def of(self, node: str) -> NodeProcess:
        """Return the process of a node, given by Ray's id. It is started if there is none."""


class RayMemory:
    """Reports kills for lack of memory on all nodes of the cluster to the `MemoryWatch` of this process.

    When a process was lost, it says whether such a kill was the cause.

    Args:
        processes: Optional. One process per node, which reads the memory of its node. If None, this is the only node.
    """

    def __init__(self, processes: NodeProcesses | None = None) -> None:
        self._processes = processes
        self._own = ""  # this node's address
        self._others: dict[str, NodeProcess] = {}  # by address
        self._reading: dict[str, asyncio.Task[None]] = {}  # the newest task of each node
        self._known: set[str] = set()  # messages about kills
        self._has_looked = False

    async def look(self) -> None:
        """Read the memory of all nodes. Kills by Ray before the first call do not count."""
        try:
            nodes, own, kills = await asyncio.to_thread(_ask_ray)
            if self._processes:
                self._own = nodes.get(own, self._own)
                others = [self._processes.of(node) for node, address in nodes.items() if address != self._own]
                self._others = {process.name: process for process in others}
        except Exception as error:  # Ray may not answer for a while, which must not end a run
            logger.debug("Ray does not say which processes were killed: %s", one_line(error))
            return
        if not self._has_looked:
            self._has_looked = True
            self._known |= kills
        for text in kills:
            self._record(text)
        await asyncio.gather(*(self._read(node) for node in self._others if not self._is_reading(node)))

    async def find_reason(self, error: BaseException) -> str:
        """Return why a process was lost: a kill for lack of memory just before, otherwise Ray's error in one line."""
        text = str(error)
        self._record(text)
        address = _KILL.search(text) or _DIED.search(text)
        if address is None and self._processes:
            return one_line(error)
        node = self._node(address[1]) if address else HERE
        await self._read(node)
        return watch().describe_recent(node) or one_line(error)

    def _is_reading(self, node: str) -> bool:
        return node in self._reading and not self._reading[node].done()

    async def _read(self, node: str) -> None:
        if process := self._others.get(node):
            # Never cancelled: a node may be unreachable for a while, and Ray would not make any later calls.
            reading = self._reading[node] = asyncio.create_task(self._see(node, process))
            await asyncio.wait([reading], timeout=ANSWER_SECONDS)

    async def _see(self, node: str, process: NodeProcess) -> None:
        try:
            watch().see(await process.memory(), node)
        except InfrastructureError as error:
            logger.debug("the memory of node %s is not known: %s", node, error)

    def _record(self, text: str) -> None:
        kill = _KILL.search(text)
        if kill is None or text in self._known:
            return
        self._known.add(text)
        node = self._node(kill[1])
        reading = watch().find_reading(node) or Reading(int(float(kill[2]) * GIB), {})
        if not (reading.limit and reading.sizes):  # without a limit other programs use the same memory
            users = {int(pid): Process.from_command(command, float(gib)) for pid, gib, command in _USER.findall(text)}
            reading = reading._replace(sizes=users)
        killed = {
            int(pid): Process.from_command(f"ray::{name}", float(gib)) for name, pid, gib in _KILLED.findall(text)
        }
        watch().record("Ray", killed.values(), reading._replace(sizes={**reading.sizes, **killed}), node)

    def _node(self, address: str) -> str:
        return HERE if self._processes is None or address == self._own else address


def _ask_ray() -> tuple[dict[str, str], str, set[str]]:
    """Return the addresses of the living nodes by id, the id of this node, and the messages about Ray's kills."""
    import ray
    from ray._private.state import state
    from ray.core.generated import common_pb2, gcs_pb2

    nodes = {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}
    parse, killed = gcs_pb2.WorkerTableData.FromString, common_pb2.NODE_OUT_OF_MEMORY  # type: ignore[attr-defined]
    table = map(parse, state._connect_and_get_accessor().get_worker_table())
    kills = {row.exit_detail for row in table if row.exit_type == killed}
    return nodes, ray.get_runtime_context().get_node_id(), kills
