"""Broadcasts a file or folder from one node to others. Every node passes on the pieces that it has received.

                 pieces 0, 2, ...  ┌────────┐
                ┌─────────────────►│ node B │
    ┌────────┐  │                  └──▲──┬──┘
    │ node A │──┤              1, 3, ...│  │ 0, 2, ...
    └────────┘  │                  ┌──┴──▼──┐
                └─────────────────►│ node C │
                 pieces 1, 3, ...  └────────┘

A node fetches a few pieces at a time, rarest first, each from the least busy node that has a missing piece. So every
piece crosses the link of A about once, for any number of nodes. If all nodes read from A, they would share its link. A
node that is slow or dead only delays the pieces that it was going to pass on, by seconds.

`NodeRelay` implements the transfers.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, Self, TypeAlias

from tasks.failures import InfrastructureError

logger = logging.getLogger(__name__)

PIECE_BYTES = 64 << 20
"""Size of a piece in bytes. A transfer takes this much memory on either node."""
LANES = 2
"""Number of pieces that a node fetches at a time, so that one is transferred while the other is written."""
ANSWER_SECONDS = 60.0
"""Time limit in seconds for starting a relay and listing the files of its node."""
FIRST_PIECE_SECONDS = 60.0
"""Timeout of the first piece that a node fetches, in seconds. It is then fetched from another node."""
PATIENCE_SECONDS, PATIENCE = 5.0, 4.0
"""Timeout of later pieces: `PATIENCE_SECONDS`, plus `PATIENCE` times the duration of the slowest piece so far for every
piece that the sender is sending."""

Contents: TypeAlias = list[tuple[str, int]]
"""Relative names and sizes in bytes of the files in a folder. A single file is listed with an empty name. An empty list
means that there is neither a file nor a folder."""


class RelayError(InfrastructureError):
    """A file could not be copied to a node, or a node does not respond. The message names the node."""


@dataclass(frozen=True)
class Piece:
    """A range of bytes of one file.

    Attributes:
        name: name of the file within the folder. Empty if the copied path is a file.
        offset: start of the range, in bytes.
        size: length of the range, in bytes.
    """

    name: str
    offset: int
    size: int


def split_into_pieces(contents: Contents, size: int) -> list[Piece]:
    """Return the pieces of all files, none larger than `size` bytes."""
    return [
        Piece(name, offset, min(size, whole - offset)) for name, whole in contents for offset in range(0, whole, size)
    ]


class NodeRelay(Protocol):
    """The controller's interface to the files of one node. Every method may raise `RelayError`.

    Methods are idempotent: a call that is repeated because its answer was lost has no second effect.

    Attributes:
        name: address of the node.
    """

    name: str

    async def contents(self, path: str) -> Contents:
        """Return the complete files at `path` on the node."""

    async def begin(self, path: str, contents: Contents) -> bool:
        """Create the files that pieces are written to, next to `path`. Return True if they existed already."""

    async def fetch(self, holder: Self, path: str, piece: Piece) -> int:
        """Write a piece that `holder` reads from its node. Return the number of bytes written."""

    async def complete(self, path: str, contents: Contents) -> None:
        """Check the sizes of the written files, and move them to `path`."""

    async def remove(self, path: str) -> None:
        """Remove the file or folder at `path`, complete or not."""

    async def is_alive(self) -> bool:
        """Return False if the node has left the cluster."""


Relays: TypeAlias = Callable[[str], NodeRelay]
"""Function that returns the relay of the node with an id."""


class Spread:
    """The broadcast of one file or folder: nodes copy it from each other, beginning with the node that has it.

    Attributes:
        path: path of the file or folder, the same on every node.
        origin: id of the node that has it.
        running: number of nodes that the file is being copied to.
    """

    def __init__(self, path: str, origin: str, relays: Relays, piece_bytes: int = PIECE_BYTES) -> None:
        self.path = path
        self.origin = origin
        self.running = 0
        self._relays = relays
        self._piece_bytes = piece_bytes
        self._opening = asyncio.Lock()
        self._contents: Contents = []
        self._pieces: Sequence[Piece] = ()
        self._all: set[int] = set()  # numbers of the pieces
        self._held: dict[str, set[int]] = {}  # pieces by node
        self._coming: defaultdict[str, set[int]] = defaultdict(set)  # pieces in transfer to a node
        self._copies: Counter[int] = Counter()  # number of nodes that have or receive a piece
        self._uploads: Counter[str] = Counter()  # number of transfers from a node
        self._avoided: defaultdict[str, set[str]] = defaultdict(set)  # nodes that failed to send to this one
        self._slowest: dict[str, float] = {}  # seconds that a piece to a node takes alone

    async def bring(self, node: str) -> None:
        """Copy the file to the node. A second call continues after a first that failed.

        Raises:
            RelayError: no node sends the missing data, or the node does not write it.
        """
        self.running += 1
        try:
            await self._bring(node)
        finally:
            self.running -= 1

    def forget(self, node: str) -> None:
        """Fetch nothing more from a node, because its copy is removed."""
        self._held.pop(node, None)

    async def _bring(self, node: str) -> None:
        relay = self._relays(node)
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                await self._open()
                if await relay.contents(self.path) == self._contents:
                    return
                if not await relay.begin(self.path, self._contents) or node not in self._held:
                    self._held[node] = set()
        except TimeoutError as error:
            origin = self._relays(self.origin).name
            raise RelayError(f"node {origin} or {relay.name} does not answer for {ANSWER_SECONDS:g} s") from error
        self._avoided[node].clear()
        lanes = [asyncio.create_task(self._fetch_all(node, relay)) for _ in range(LANES)]
        try:
            await asyncio.gather(*lanes)
        finally:
            for lane in lanes:
                lane.cancel()
        await relay.complete(self.path, self._contents)

    async def _open(self) -> None:
        async with self._opening:
            if self._contents:
                return
            self._contents = await self._relays(self.origin).contents(self.path)
            if not self._contents:
                raise RelayError(f"node {self._relays(self.origin).name} has no {self.path} to copy from")
            self._pieces = split_into_pieces(self._contents, self._piece_bytes)
            self._all = set(range(len(self._pieces)))
            self._held[self.origin] = self._all

    async def _fetch_all(self, node: str, relay: NodeRelay) -> None:
        while self._find_missing(node):
            holder, index = self._choose(node)
            await self._fetch(node, relay, holder, index)

    def _find_missing(self, node: str) -> set[int]:
        return self._all - self._held[node] - self._coming[node]

    def _choose(self, node: str) -> tuple[str, int]:
        """Return the node to fetch the next piece from, and the number of the piece."""
        lacked = self._find_missing(node)
        others = self._held.keys() - self._avoided[node] - {node}
        # Of equally busy nodes take the one with fewest pieces, to keep the origin free for pieces that only it has.
        for holder in sorted(others, key=lambda other: (self._uploads[other], len(self._held[other]))):
            if offered := lacked & self._held[holder]:
                return holder, min(offered, key=lambda index: (self._copies[index], index))
        missing = len(self._all - self._held[node])
        raise RelayError(f"no node sends {self.path} to node {self._relays(node).name}: {missing} pieces are missing")

    async def _fetch(self, node: str, relay: NodeRelay, holder: str, index: int) -> None:
        piece, loop = self._pieces[index], asyncio.get_running_loop()
        self._coming[node].add(index)
        self._copies[index] += 1
        self._uploads[holder] += 1
        began, uploads, sender = loop.time(), self._uploads[holder], self._relays(holder)
        patience = self._compute_timeout(node, uploads)
        try:
            async with asyncio.timeout(patience):
                written = await relay.fetch(sender, self.path, piece)
            if written != piece.size:
                raise RelayError(f"{written} of {piece.size} bytes arrived")
        except (TimeoutError, RelayError) as error:
            reason = str(error) or f"no data arrived for {patience:.0f} s"
            logger.warning("%s: %s uses another node than %s: %s", self.path, relay.name, sender.name, reason)
            self._avoided[node].add(holder)
        else:
            alone = (loop.time() - began) / max(uploads, self._uploads[holder])  # uploads share the sender's link
            self._slowest[node] = max(self._slowest.get(node, 0.0), alone)
            self._held[node].add(index)
        finally:
            self._uploads[holder] -= 1
            self._coming[node].discard(index)
            if index not in self._held[node]:
                self._copies[index] -= 1

    def _compute_timeout(self, node: str, uploads: int) -> float:
        """Return the timeout in seconds of a transfer from a sender with this number of uploads."""
        if node not in self._slowest:
            return FIRST_PIECE_SECONDS
        return PATIENCE_SECONDS + PATIENCE * self._slowest[node] * uploads
