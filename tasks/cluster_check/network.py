"""Measures the bandwidth of an all-reduce over a run's learner ranks, and finds the network that it uses."""

from __future__ import annotations

import os
import re
import socket
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tasks.cluster_check.nodes import NodeFacts
from tasks.gpu_check.results import Findings, SkippedError
from tasks.machine.groups import LEARNER, find_group

REPEATS = 5
"""Number of timed all-reduces, after one warm-up."""

BYTES = {"nccl": 256 << 20, "gloo": 16 << 20}
"""Size of an all-reduce in bytes, by the library that computes it."""

LIMIT_SECONDS = 300.0
"""Timeout for the ranks to connect and to reduce, seconds."""

LEAST_BANDWIDTH = 1e9
"""Minimum all-reduce bandwidth of a GPU, bytes/s. Below it, the learner would mostly wait for its network."""


@dataclass(frozen=True)
class Reduction:
    """A measured all-reduce.

    Attributes:
        ranks, nodes: numbers of processes and nodes that took part.
        size: bytes contributed by each process.
        seconds: median time of the slowest rank.
        library: `nccl` on GPUs, `gloo` on CPUs.
        network: the network that NCCL uses between nodes (`find_network`), or empty if it is not reported.
    """

    ranks: int
    nodes: int
    size: int
    seconds: float
    library: str
    network: str = ""

    @property
    def bandwidth(self) -> float:
        """Bytes/s that a rank sends and receives: 2 (n - 1) / n of the size, as NCCL's own tests define it."""
        return 2 * (self.ranks - 1) / self.ranks * self.size / self.seconds


def find_network(log: str) -> str:
    """Return the network in a log of `NCCL_DEBUG=INFO`: `NET/IB/GDRDMA`, `NET/IB`, `NET/Socket`, or a plugin's.

    The network is read from a channel, as in "via NET/IB/0/GDRDMA", or else from the network that NCCL chose. The log
    may contain the logs of several ranks, in which case the slowest network is returned. Returns an empty string if the
    log names no network.
    """
    channels = {f"NET/{kind}{'/GDRDMA' if direct else ''}" for kind, direct in _CHANNEL.findall(log)}
    chosen = channels or {f"NET/{kind}" for kind in _CHOSEN.findall(log)}
    return max(chosen, key=lambda network: ("Socket" in network, "GDRDMA" not in network, network), default="")


_CHANNEL = re.compile(r"via NET/(\w+)/\d+(/GDRDMA)?")
_CHOSEN = re.compile(r"(?:Using network|Assigned NET plugin) (\w+)")


class ReducingRank:
    """A Ray actor that runs one process of an all-reduce."""

    def address(self) -> tuple[str, int]:
        """Return this node's address, and a free port on it."""
        import ray

        with socket.create_server(("", 0)) as listening:
            return ray.util.get_node_ip_address(), int(listening.getsockname()[1])

    def reduce(self, rank: int, ranks: int, address: tuple[str, int]) -> tuple[float, str, str]:
        """Return the median seconds of an all-reduce, the library that computed it, and NCCL's log. Collective.

        Args:
            rank: rank of this process, from 0.
            ranks: number of processes.
            address: the result of `address` on rank 0.
        """
        log = Path(tempfile.mkdtemp()) / "nccl.log"
        os.environ |= {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log)}
        import torch
        from torch import distributed

        library = "nccl" if torch.cuda.is_available() else "gloo"
        distributed.init_process_group(
            library, init_method=f"tcp://{address[0]}:{address[1]}", rank=rank, world_size=ranks
        )
        device = torch.device("cuda" if library == "nccl" else "cpu")
        numbers = torch.ones(BYTES[library] // 4, device=device)

        def measure_seconds() -> float:
            distributed.barrier()
            began = time.perf_counter()
            distributed.all_reduce(numbers, op=distributed.ReduceOp.MAX)
            numbers[0].item()  # waits for the GPU
            return time.perf_counter() - began

        measure_seconds()
        seconds = statistics.median(measure_seconds() for _ in range(REPEATS))
        distributed.destroy_process_group()
        return seconds, library, log.read_text() if log.is_file() else ""


def measure_reduction(ranks: int, gpus: bool) -> Reduction:
    """Measure an all-reduce of `ranks` ranks on the Ray cluster, with one GPU each if `gpus` is true.

    Ranks fill one node after the other, as the learner's ranks do.

    Raises:
        TimeoutError: it took longer than `LIMIT_SECONDS`.
    """
    import ray
    from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

    from tasks.training.cluster.nodes import list_living_nodes

    nodes = choose_nodes(ranks, {node["NodeID"]: node["Resources"] for node in list_living_nodes()}, gpus=gpus)
    remote: Any = ray.remote(ReducingRank)
    actors = [
        remote.options(
            num_cpus=0, num_gpus=int(gpus), scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
        ).remote()
        for node in nodes
    ]
    try:
        address = ray.get(actors[0].address.remote(), timeout=LIMIT_SECONDS)
        calls = [actor.reduce.remote(rank, ranks, address) for rank, actor in enumerate(actors)]
        results = ray.get(calls, timeout=LIMIT_SECONDS)
    except ray.exceptions.GetTimeoutError:
        raise TimeoutError(
            f"an all-reduce of {ranks} ranks on {len(set(nodes))} nodes did not end in {LIMIT_SECONDS:g} s: the nodes "
            "may not reach each other (network policies; NCCL_SOCKET_IFNAME)"
        ) from None
    finally:
        for actor in actors:
            ray.kill(actor)
    seconds, libraries, logs = zip(*results, strict=True)
    library = libraries[0]
    return Reduction(
        ranks, len(set(nodes)), BYTES[library], max(seconds), library, find_network("\n".join(map(str, logs)))
    )


def choose_nodes(ranks: int, nodes: dict[str, dict[str, float]], *, gpus: bool) -> list[str]:
    """Return the node of each rank. Nodes are filled one after the other, starting with the nodes with the most GPUs.

    If some nodes are machines of the learner's group, only these are used.

    Args:
        ranks: number of ranks.
        nodes: resources of each node, by its id.
        gpus: whether a rank takes a GPU. If false, ranks are assigned to the nodes round-robin.

    Raises:
        SkippedError: there are fewer GPUs than ranks, or there is only one rank.
    """
    if ranks < 2:
        raise SkippedError("The learner has one rank, so there is no all-reduce.")
    of_learner = {node: amounts for node, amounts in nodes.items() if find_group(amounts) == LEARNER}
    nodes = of_learner or nodes
    if not gpus:
        names = sorted(nodes)
        return [names[rank % len(names)] for rank in range(ranks)]
    ordered = sorted(nodes, key=lambda node: (-nodes[node].get("GPU", 0), node))
    places = [node for node in ordered for _ in range(int(nodes[node].get("GPU", 0)))]
    if len(places) < ranks:
        raise SkippedError(f"The cluster has {len(places)} GPUs, and the learner {ranks} ranks.")
    return places[:ranks]


def check_network(findings: Findings, measured: Reduction, nodes: Sequence[NodeFacts]) -> None:
    """Check that NCCL uses the RDMA devices of the nodes, and that its bandwidth is at least `LEAST_BANDWIDTH`."""
    bandwidth, devices = measured.bandwidth, sorted({device for node in nodes for device in node.rdma})
    findings.figures["GB/s a rank"] = bandwidth / 1e9
    where = f"{measured.ranks} ranks on {measured.nodes} node{'' if measured.nodes == 1 else 's'}"
    by = f" by {measured.network}" if measured.network and measured.nodes > 1 else ""
    findings.note = (
        f"An all-reduce of {measured.size >> 20} MiB over {where} moves {bandwidth / 1e9:.2f} GB/s a rank"
        f"{by} ({measured.library})."
    )
    if measured.library != "nccl":
        return
    if measured.nodes > 1 and devices and "Socket" in measured.network:
        findings.faults.append(
            f"NCCL uses {measured.network} at {bandwidth / 1e9:.2f} GB/s a rank, and the nodes have RDMA devices "
            f"({', '.join(devices)}): the image needs libibverbs1, and the pod IPC_LOCK and a resource of your "
            "device plugin (cluster.node.template)."
        )
    elif bandwidth < LEAST_BANDWIDTH:
        findings.faults.append(
            f"An all-reduce over {where} moves {bandwidth / 1e9:.2f} GB/s a rank{by}, less than "
            f"{LEAST_BANDWIDTH / 1e9:g}: the learner would mostly wait."
        )
