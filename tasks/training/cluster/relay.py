"""The relay: one small Ray actor per node, through which files reach nodes that share no disk.

A piece is an object of Ray's store: the relay of one node reads it from a file, Ray transfers it to another node, whose
relay writes it, and it is freed when the controller has the answer. The controller sees names and numbers, never the
bytes. Of several nodes that have an object Ray takes one by lot, at first always the sender; `Spread` chooses, so that
the sender's link is not divided by the number of nodes. vLLM's own transfer of this kind, `sharded_rdt`, needs NIXL,
which neither set of pinned packages has, and its receivers are GPUs.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tasks.failures import MistakeError, one_line
from tasks.storage.durable import PARTIAL
from tasks.training.actors.spread import PIECE_BYTES, Contents, Piece, RelayError, Spread
from tasks.training.actors.weights import SHARED_MEMORY, held_folder, remove_abandoned
from tasks.training.cluster.nodes import NotSharedError, living_nodes

if TYPE_CHECKING:
    from numpy.typing import NDArray
    from ray import ObjectRef

CALLS = 16
"""Number of calls that a relay answers at a time."""
CLOSE_SECONDS = 10.0
"""Seconds that relays may take to remove their folders at the end of a run."""


class SharedMemoryError(MistakeError):
    """A node has not the shared memory that weights take; the message names the node and the option."""


class RelayProcess:
    """The part of the relay that runs on a node, in a Ray actor: it reads and writes files there.

    It holds the folder of the weights, which is removed with it. One that is started again, because it died, finds the
    folder as it was.
    """

    def __init__(self, folder: str) -> None:
        self._held = contextlib.ExitStack()
        self._held.enter_context(held_folder(Path(folder)))
        remove_abandoned(Path(folder).parent)
        self._free = shutil.disk_usage(folder).free

    def free(self) -> int:
        """Return the bytes of shared memory that were free at the start."""
        return self._free

    def exists(self, path: str) -> bool:
        """Return True if the node sees a file or folder."""
        return os.path.exists(path)

    def contents(self, path: str) -> Contents:
        """Return what is at `path`, as `NodeRelay.contents` does."""
        root = Path(path)
        if root.is_dir():
            files = sorted(file for file in root.rglob("*") if file.is_file())
            return [(str(file.relative_to(root)), file.stat().st_size) for file in files]
        return [("", root.stat().st_size)] if root.exists() else []

    def begin(self, path: str, contents: Contents) -> bool:
        """Make the unfinished files, of their later sizes; return True if all were there already."""
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
        if not file.exists():  # this node itself is still being brought the rest of it
            file = Path(path + PARTIAL, piece.name) if piece.name else Path(path + PARTIAL)
        return np.fromfile(file, np.uint8, piece.size, offset=piece.offset)

    def write(self, path: str, piece: Piece, data: NDArray[np.uint8]) -> int:
        """Write the bytes of a piece into the unfinished file; return their number."""
        with Path(path + PARTIAL, piece.name).open("r+b") as stream:
            stream.seek(piece.offset)
            return stream.write(data.data)

    def complete(self, path: str, contents: Contents) -> None:
        """Put the unfinished file or folder in its place.

        Raises:
            OSError: there is something else, or a size is wrong.
        """
        if self.contents(path) == contents:  # the answer to an earlier call was lost
            return
        if (arrived := self.contents(path + PARTIAL)) != contents:
            raise OSError(f"{path}: {arrived} has arrived, of {contents}")
        os.rename(path + PARTIAL, path)

    def remove(self, path: str) -> None:
        """Remove the file or folder, and the unfinished one."""
        for item in (Path(path), Path(path + PARTIAL)):
            if item.is_dir():
                shutil.rmtree(item)
            else:
                item.unlink(missing_ok=True)

    def close(self) -> None:
        """Remove the folder of the weights."""
        self._held.close()


class RayRelay:
    """The controller's client of one `RelayProcess`: a `NodeRelay` that turns Ray's errors into `RelayError`.

    Attributes:
        handle: of the Ray actor.
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

    async def is_alive(self) -> bool:
        return any(node["NodeID"] == self.node for node in await asyncio.to_thread(living_nodes))

    async def _call(self, reference: ObjectRef) -> Any:
        import ray

        try:
            return await reference
        except asyncio.CancelledError:
            ray.cancel(reference)  # it would wait for a piece that may never come
            raise
        except ray.exceptions.RayTaskError as error:
            if isinstance(error.cause, OSError | ray.exceptions.RayError):  # the second: of what it was to write
                raise RelayError(f"node {self.name}: {one_line(error.cause)}") from error
            raise
        except ray.exceptions.RayError as error:
            raise RelayError(f"the relay of node {self.name} does not answer: {one_line(error)}") from error


class RelayNodes:
    """The relays of a run, which are started on a node when something is brought there.

    Args:
        model: folder of the initial model on this node.
        needed: bytes of shared memory that weights take on a node.
        piece_bytes: largest piece in which a file is copied.

    Attributes:
        folder: of the weights, in the shared memory of every node that has a relay.
    """

    def __init__(self, model: Path, needed: int, piece_bytes: int = PIECE_BYTES) -> None:
        import ray

        self.folder = SHARED_MEMORY / f"rlvr-{uuid.uuid4().hex[:16]}"
        self._needed = needed
        self._relays: dict[str, RayRelay] = {}
        self._prepared: dict[str, asyncio.Task[None]] = {}
        self._own = ray.get_runtime_context().get_node_id()
        self._model = Spread(str(model.absolute()), self._own, self.of, piece_bytes)

    def of(self, node: str) -> RayRelay:
        """Return the relay of a node, which is started where there is none; Ray starts it again when it dies."""
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
            address = next((alive["NodeManagerAddress"] for alive in living_nodes() if alive["NodeID"] == node), node)
            self._relays[node] = RayRelay(remote.remote(str(self.folder)), node, address)
        return self._relays[node]

    async def prepare(self, node: str) -> None:
        """Bring the initial model to a node, and see that weights have room there; once, however often it is called.

        Raises:
            RelayError: that fails; the next call tries again.
            SharedMemoryError: the node has too little shared memory.
        """
        if node not in self._prepared or _failed(self._prepared[node]):
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

    async def prepare_learner(self, nodes: set[str], run_folder: Path) -> None:
        """Prepare the nodes of the learner's ranks, which write checkpoints into the run folder.

        Raises:
            NotSharedError: one of them does not see the run folder; names the node and the option.
            RelayError, SharedMemoryError: a node cannot be prepared.
        """
        await asyncio.gather(*(self.prepare(node) for node in nodes))
        await check_seen(run_folder, [self.of(node) for node in nodes])

    def shutdown(self) -> None:
        """End all relays; the weights go with them."""
        import ray

        closing: list[ObjectRef] = [relay.handle.close.remote() for relay in self._relays.values()]
        if closing:
            ray.wait(closing, num_returns=len(closing), timeout=CLOSE_SECONDS)
        for relay in self._relays.values():
            ray.kill(relay.handle)


async def check_seen(run_folder: Path, relays: Sequence[RayRelay]) -> None:
    """Check that the nodes of learner ranks see the run folder.

    Raises:
        NotSharedError: one does not; names the node and the option.
    """
    with _witness(run_folder) as witness:
        seen = await asyncio.gather(*(relay.exists(str(witness)) for relay in relays))
    if blind := sorted(relay.name for relay, sees in zip(relays, seen, strict=True) if not sees):
        raise NotSharedError(
            f"learner ranks and controller are on several nodes, of which {', '.join(blind)} do not see {run_folder}: "
            "RLVR_RUNS has to be a folder on storage that they share, and is "
            f"{os.environ.get('RLVR_RUNS', 'not set')}"
        )


@contextlib.contextmanager
def _witness(folder: Path) -> Iterator[Path]:
    witness = folder / f"seen.{uuid.uuid4().hex[:8]}"
    witness.touch()
    try:
        yield witness
    finally:
        witness.unlink()


def _failed(task: asyncio.Task[None]) -> bool:
    return task.done() and (task.cancelled() or task.exception() is not None)
