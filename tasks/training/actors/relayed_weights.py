"""Distributes the weights of a run on several nodes: copies each version to the shared memory of nodes with engines.

    rank 0 writes ──► memory of its node ──► memory of each engine's node ──► the engines there
                      (the learner waits)    (engines generate)               (each pauses only for this)

Paths are the same on every node. Nodes are independent of each other: engines update as soon as their node has the
version, and a node that is late skips to the newest version.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter, defaultdict
from collections.abc import Coroutine, Iterator
from pathlib import Path
from typing import Any

from tasks.storage.tensor_digest import NOTHING, Contents
from tasks.training.actors.broadcast import PIECE_BYTES, RelayError, Relays, Spread
from tasks.training.actors.weights import Weights
from tasks.training.learner.weight_files import BUFFERS

logger = logging.getLogger(__name__)

RETRY_SECONDS = 5.0
"""Pause in seconds after a failed copy to a node. Then the newest version is copied."""


class RelayedWeights(Weights):
    """The published weights, on every node that follows them.

    A version is removed from a node when the node has a newer version and no actor there is reading it. The node on
    which the learner wrote it also waits until it is not being copied to another node any more.

    Args:
        folder: folder of the weights, which exists on every node that has a relay.
        relays: returns the relay of a node.
        piece_bytes: size of a transfer, in bytes.
    """

    def __init__(self, folder: Path, relays: Relays, piece_bytes: int = PIECE_BYTES) -> None:
        super().__init__(folder)
        self._relays = relays
        self._piece_bytes = piece_bytes
        self._spreads: dict[int, Spread] = {}
        self._versions: defaultdict[str, set[int]] = defaultdict(set)  # complete versions, by node
        self._readers: Counter[tuple[str, int]] = Counter()
        self._following: dict[str, asyncio.Task[None]] = {}
        self._removals: set[asyncio.Task[None]] = set()
        self._writer = ""  # the node of learner rank 0

    async def publish(self, version: int, node: str, contents: Contents = NOTHING) -> None:
        """Make `version` the newest, and copy it to every node that follows."""
        if node:
            if self._writer not in ("", node):  # a new rank 0 has its own buffers on another node
                self._begin_removal(self._writer, self._relays(self._writer).remove(str(self._folder / BUFFERS)))
            self._writer = node
            self._spreads[version] = Spread(str(self.path(version)), node, self._relays, self._piece_bytes)
            self._versions[node].add(version)
        await self._make_newest(version, contents)
        self._drop_old()

    def follow(self, node: str) -> None:
        """Copy the newest version to a node, now and after every publication, for as long as the node lives."""
        if node not in self._following:
            self._following[node] = asyncio.create_task(self._follow(node))
            self._following[node].add_done_callback(_log_defect)

    def find_newest_version(self, node: str) -> int:
        """Return the newest version that is complete on the node, or -1 if there is none."""
        return max(self._versions[node], default=-1)

    @contextlib.contextmanager
    def open(self, node: str) -> Iterator[tuple[int, Path]]:
        """Yield the newest version on a node and its path there. The node keeps it for the duration of the block."""
        version = self.find_newest_version(node)
        self._readers[node, version] += 1
        try:
            yield version, self.path(version)
        finally:
            self._readers[node, version] -= 1
            self._drop_old()

    def close(self) -> None:
        """Stop copying weights to nodes."""
        for task in (*self._following.values(), *self._removals):
            task.cancel()

    async def _follow(self, node: str) -> None:
        tried = -1
        while True:
            await self._wait_until_published(tried)
            version = self.version
            if spread := self._spreads.get(version):
                try:
                    await spread.bring(node)
                except RelayError as error:
                    relay = self._relays(node)
                    if not await relay.is_alive():
                        logger.warning("node %s has left the cluster: no weights are sent to it any more", relay.name)
                        break
                    logger.warning("version %d is not on node %s yet: %s", version, relay.name, error)
                    await asyncio.sleep(RETRY_SECONDS)
                    continue
                self._versions[node].add(version)
                await self._notify()
            tried = version
            self._drop_old()
        self._versions.pop(node, None)
        self._following.pop(node, None)
        for spread in self._spreads.values():
            spread.forget(node)
        self._drop_old()  # versions that were kept only to be copied to this node

    def _drop_old(self) -> None:
        for node, versions in self._versions.items():
            for version in [old for old in versions if old < max(versions) and not self._is_needed(node, old)]:
                versions.discard(version)
                self._spreads[version].forget(node)
                self._begin_removal(node, self._relays(node).remove(str(self.path(version))))
        held = set().union(*self._versions.values())
        for version in self._spreads.keys() - held - {self.version}:
            del self._spreads[version]

    def _is_needed(self, node: str, version: int) -> bool:
        spread = self._spreads[version]
        return self._readers[node, version] > 0 or (spread.origin == node and spread.running > 0)

    def _begin_removal(self, node: str, removal: Coroutine[Any, Any, None]) -> None:
        async def remove() -> None:
            try:
                await removal
            except RelayError as error:
                logger.warning("old weights were not deleted from node %s: %s", self._relays(node).name, error)

        task = asyncio.create_task(remove())
        self._removals.add(task)
        task.add_done_callback(self._removals.discard)


def _log_defect(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()):
        logger.error("no weights are sent to a node any more", exc_info=error)
