"""Copies files between nodes that share no disk, with one small Ray actor per node (the relay).

Each transfer is an object in Ray's store: the relay of one node reads it from a file, Ray transfers it to another node,
the relay there writes it, and it is freed when the controller has the answer. The controller handles names and numbers,
never the bytes. If several nodes have an object, Ray chooses one at random, at first always the sender. Here `Spread`
chooses instead, so that the nodes do not all share the sender's link. vLLM has a similar transfer, `sharded_rdt`, but
it needs NIXL, which is in neither set of pinned packages, and its receivers are GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import shutil
import uuid
from collections.abc import Collection, Coroutine, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.failures import MistakeError, one_line
from tasks.machine.memory_limit import MemoryLimit, Reading
from tasks.storage.durable import PARTIAL, remove
from tasks.training.actors.broadcast import PIECE_BYTES, Contents, Piece, RelayError, Spread
from tasks.training.actors.weights import SHARED_MEMORY, make_locked_folder, remove_abandoned
from tasks.training.cluster.nodes import NotSharedError, list_living_nodes
from tasks.training.runtime.ray_calls import result_of

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ray import ObjectRef

logger = logging.getLogger(__name__)

CALLS = 16
"""Number of calls that a relay handles at a time."""
CLOSE_SECONDS = 10.0
"""Seconds that relays may take to remove their folders at the end of a run."""


class SharedMemoryError(MistakeError):
    """A node has too little shared memory for the weights. The message names the node and the option."""


class RelayProcess:
    """The server side of a relay, in a Ray actor on a node. It reads and writes files there.

    It locks the folder of the weights, which is removed when the relay is closed. If the process dies and is restarted,
    it finds the old folder.
    """

    def __init__(self, folder: str) -> None:
        self._held = contextlib.ExitStack()
        self._held.enter_context(make_locked_folder(Path(folder)))
        remove_abandoned(Path(folder).parent)
        self._free = shutil.disk_usage(folder).free

    def free(self) -> int:
        """Return the bytes of shared memory that were free at the start."""
        return self._free

    def memory(self) -> Reading:
        """Return the memory limit, the processes and the kills of the node's control group."""
        return MemoryLimit.from_this_process().read()

    def exists(self, path: str) -> bool:
        """Return True if the node sees a file or folder."""
        return os.path.exists(path)

    def contents(self, path: str) -> Contents:
        """Return the files at `path` (`NodeRelay.contents`)."""
        root = Path(path)
        if root.is_dir():
            files = sorted(file for file in root.rglob("*") if file.is_file())
            return [(str(file.relative_to(root)), file.stat().st_size) for file in files]
        return [("", root.stat().st_size)] if root.exists() else []

    def begin(self, path: str, contents: Contents) -> bool:
        """Create the unfinished files with their final sizes. Return True if all existed already."""
        partial, continues = Path(path + PARTIAL), True
        for name, size in contents:
            file = partial / name if name else partial
            if not file.exists() or file.stat().st_size != size:
                continues = False
                file.parent.mkdir(parents=True, exist_ok=True)
                with file.open("wb") as stream:
                    stream.truncate(size)
        return continues

    def read(self, path: str, piece: Piece) -> NDArray[np.uint8]:
        """Return the bytes of a piece."""
        file = Path(path, piece.name) if piece.name else Path(path)
        if not file.exists():  # the rest of it is still being copied to this node
            file = Path(path + PARTIAL, piece.name) if piece.name else Path(path + PARTIAL)
        return np.fromfile(file, np.uint8, piece.size, offset=piece.offset)

    def write(self, path: str, piece: Piece, data: NDArray[np.uint8]) -> int:
        """Write the bytes of a piece into the unfinished file, and return their number."""
        with Path(path + PARTIAL, piece.name).open("r+b") as stream:
            stream.seek(piece.offset)
            return stream.write(data.data)

    def complete(self, path: str, contents: Contents) -> None:
        """Move the unfinished file or folder to its final path.

        Raises:
            OSError: there is something else at the path, or a size is wrong.
        """
        if self.contents(path) == contents:  # the answer to an earlier call was lost
            return
        if (arrived := self.contents(path + PARTIAL)) != contents:
            raise OSError(f"{path}: {arrived} has arrived, of {contents}")
        os.rename(path + PARTIAL, path)

    def remove(self, path: str) -> None:
        """Remove the file or folder, and its unfinished version."""
        for item in (Path(path), Path(path + PARTIAL)):
            remove(item)

    def keep_only(self, folder: str, names: Collection[str]) -> None:
        """Remove every file and folder from a folder except these names."""
        for item in Path(folder).glob("*"):
            if item.name not in names:
                self.remove(str(item))

    def close(self) -> None:
        """Remove the folder of the weights."""
        self._held.close()


class RayRelay:
    """The controller's client of one `RelayProcess`: a `NodeRelay` that converts Ray's errors to `RelayError`.

    Attributes:
        handle: handle of the Ray actor.
        node: id of its node.
        name: address of the node.
    """

    def __init__(self, handle: Any, node: str, name: str) -> None:
        self.handle = handle
        self.node = node
        self.name = name

    async def free(self) -> int:
        """Return the bytes of shared memory that were free on the node at the start."""
        return await self._call(self.handle.free.remote())

    async def memory(self) -> Reading:
        return await self._call(self.handle.memory.remote())

    async def exists(self, path: str) -> bool:
        """Return True if the node sees a file or folder."""
        return await self._call(self.handle.exists.remote(path))

    async def contents(self, path: str) -> Contents:
        return await self._call(self.handle.contents.remote(path))

    async def begin(self, path: str, contents: Contents) -> bool:
        return await self._call(self.handle.begin.remote(path, contents))

    async def fetch(self, holder: RayRelay, path: str, piece: Piece) -> int:
        data: ObjectRef = holder.handle.read.remote(path, piece)
        return await self._call(self.handle.write.remote(path, piece, data))

    async def complete(self, path: str, contents: Contents) -> None:
        await self._call(self.handle.complete.remote(path, contents))

    async def remove(self, path: str) -> None:
        await self._call(self.handle.remove.remote(path))

    async def keep_only(self, folder: str, names: Collection[str]) -> None:
        """Remove every file and folder from a folder of the node except these names."""
        await self._call(self.handle.keep_only.remote(folder, names))

    async def is_alive(self) -> bool:
        return any(node["NodeID"] == self.node for node in await asyncio.to_thread(list_living_nodes))

    async def _call(self, reference: ObjectRef) -> Any:
        import ray

        try:
            return await result_of(reference)
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OSError | ray.exceptions.RayError):  # a `RayError` is about the object to write
                raise RelayError(f"node {self.name}: {one_line(error.cause)}") from error
            raise
        except ray.exceptions.RayError as error:
            raise RelayError(f"the relay of node {self.name} does not answer: {one_line(error)}") from error


class RelayNodes:
    """The relays of a run. A relay is started on a node when something is first copied there.

    Args:
        model: folder of the initial model on this node.
        needed: bytes of shared memory that weights take on a node.
        piece_bytes: size of a transfer, in bytes.

    Attributes:
        folder: folder of the weights, in the shared memory of every node that has a relay.
    """

    def __init__(self, model: Path, needed: int, piece_bytes: int = PIECE_BYTES) -> None:
        import ray

        self.folder = SHARED_MEMORY / f"rlvr-{uuid.uuid4().hex[:16]}"
        self._needed = needed
        self._relays: dict[str, RayRelay] = {}
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._own = ray.get_runtime_context().get_node_id()
        self._piece_bytes = piece_bytes
        self._removals: set[asyncio.Task[None]] = set()
        self._model = Spread(str(model.absolute()), self._own, self.of, piece_bytes)

    def of(self, node: str) -> RayRelay:
        """Return the relay of a node, and start it if there is none. Ray restarts it when it dies."""
        import ray
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        if node not in self._relays:
            remote = ray.remote(RelayProcess).options(
                num_cpus=0,
                max_concurrency=CALLS,
                max_restarts=-1,
                max_task_retries=-1,
                enable_task_events=False,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False),
            )
            address = next(
                (alive["NodeManagerAddress"] for alive in list_living_nodes() if alive["NodeID"] == node), node
            )
            self._relays[node] = RayRelay(remote.remote(str(self.folder)), node, address)
        return self._relays[node]

    async def prepare(self, node: str) -> None:
        """Copy the initial model to a node, and check that there is room for weights. Repeated calls do this only once.

        Raises:
            RelayError: the copy failed. The next call tries again.
            SharedMemoryError: the node has too little shared memory.
        """
        if node not in self._prepared or _has_failed(self._prepared[node]):
            self._prepared[node] = asyncio.create_task(self._prepare(node))
        await asyncio.shield(self._prepared[node])

    async def _prepare(self, node: str) -> None:
        relay = self.of(node)
        free = await relay.free()
        if free < self._needed:
            raise SharedMemoryError(
                f"node {relay.name} has {free / 2**30:.1f} GiB of shared memory free, and three versions of the "
                f"weights take {self._needed / 2**30:.1f} GiB: cluster.node.shared_memory_gib sets it for pods"
            )
        if not await relay.contents(self._model.path):
            await self._model.bring(node)

    async def prepare_learner(self, nodes: set[str], run_folder: Path, *, needs_folder: bool) -> set[str]:
        """Prepare the nodes of the learner's ranks. Return the ids of the nodes that do not see the run folder.

        Args:
            nodes: ids of the nodes.
            run_folder: the run folder, on this node.
            needs_folder: True if ranks write checkpoints into it, because the run has no address on blob storage.

        Raises:
            NotSharedError: with `needs_folder`, a node does not see the run folder. The message names the node and the
                option.
            RelayError, SharedMemoryError: a node cannot be prepared.
        """
        await asyncio.gather(*(self.prepare(node) for node in nodes))
        blind = await find_blind_relays(run_folder, [self.of(node) for node in nodes])
        if blind and needs_folder:
            raise make_not_shared_error(run_folder, blind)
        return {relay.node for relay in blind}

    async def check_run_folder(self, run_folder: Path, rank: Mapping[str, float]) -> None:
        """Check before the start that at least one node with resources for a learner rank sees the run folder.

        Args:
            run_folder: the run folder, on this node.
            rank: resources of a rank, by Ray's names.

        Raises:
            NotSharedError: no such node sees it.
            RelayError: a node does not respond.
        """
        nodes = await asyncio.to_thread(list_living_nodes)
        able = [
            node["NodeID"]
            for node in nodes
            if all(node["Resources"].get(kind, 0) >= amount for kind, amount in rank.items())
        ]
        blind = await find_blind_relays(run_folder, [self.of(node) for node in able])
        if blind and len(blind) == len(able):
            raise make_not_shared_error(run_folder, blind)

    async def bring(self, path: Path, nodes: set[str]) -> None:
        """Copy a file or folder of this node to the same path on other nodes, and replace what is there.

        Raises:
            RelayError: the copy to a node failed.
        """
        await self.remove(path, nodes)
        spread = Spread(str(path), self._own, self.of, self._piece_bytes)
        await asyncio.gather(*(spread.bring(node) for node in nodes))

    async def collect(self, path: Path, node: str) -> None:
        """Move a file or folder from a node to the same path on this node, which must not exist.

        Raises:
            RelayError: the copy failed.
        """
        await Spread(str(path), node, self.of, self._piece_bytes).bring(self._own)
        await self.remove(path, {node})

    async def remove(self, path: Path, nodes: set[str]) -> None:
        """Remove a file or folder from nodes. If a node does not respond, a warning is logged."""
        await asyncio.gather(*(_log_relay_error(self.of(node).remove(str(path))) for node in nodes))

    def keep_only(self, folder: Path, names: Collection[str]) -> None:
        """Begin to remove everything except these names from a folder, on every node that has a relay."""
        for relay in self._relays.values():
            removal = asyncio.create_task(self._keep_only(relay, str(folder), list(names)))
            self._removals.add(removal)
            removal.add_done_callback(self._removals.discard)

    async def _keep_only(self, relay: RayRelay, folder: str, names: Collection[str]) -> None:
        try:
            await relay.keep_only(folder, names)
        except RelayError as error:
            if await relay.is_alive():
                logger.warning("old files of the learner were not deleted: %s", error)
            else:  # the node has left the cluster, and its files with it
                self._relays.pop(relay.node, None)

    def shutdown(self) -> None:
        """End all relays. The weights are removed with them."""
        import ray

        closing: list[ObjectRef] = [relay.handle.close.remote() for relay in self._relays.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for relay in self._relays.values():
            ray.kill(relay.handle)


async def _log_relay_error(removal: Coroutine[Any, Any, None]) -> None:
    try:
        await removal
    except RelayError as error:
        logger.warning("old files of the learner were not deleted: %s", error)


async def find_blind_relays(run_folder: Path, relays: Sequence[RayRelay]) -> list[RayRelay]:
    """Return the relays of nodes that do not see this node's run folder."""
    with _write_witness(run_folder) as witness:
        seen = await asyncio.gather(*(relay.exists(str(witness)) for relay in relays))
    return [relay for relay, sees in zip(relays, seen, strict=True) if not sees]


def make_not_shared_error(run_folder: Path, blind: Sequence[RayRelay]) -> NotSharedError:
    """Return the error about nodes of learner ranks that do not see the run folder, with both workarounds."""
    names = ", ".join(sorted(relay.name for relay in blind))
    return NotSharedError(
        f"learner ranks and controller are on several nodes, of which {names} do not see {run_folder}: RLVR_RUNS has "
        "to be an address on blob storage (s3://bucket/runs), to which each rank uploads its part of checkpoints, or a "
        f"folder on storage that these nodes share, and is {os.environ.get('RLVR_RUNS', 'not set')}"
    )


@contextlib.contextmanager
def _write_witness(folder: Path) -> Iterator[Path]:
    witness = folder / f"seen.{uuid.uuid4().hex[:8]}"
    witness.touch()
    try:
        yield witness
    finally:
        witness.unlink()


def _has_failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
