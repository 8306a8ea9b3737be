"""The copying of a file or folder from the node that has it to others, each of which passes on the pieces that it has.

                 pieces 0, 2, ...  ┌────────┐
                ┌─────────────────►│ node B │
    ┌────────┐  │                  └──▲──┬──┘
    │ node A │──┤              1, 3, ...│  │ 0, 2, ...
    └────────┘  │                  ┌──┴──▼──┐
                └─────────────────►│ node C │
                 pieces 1, 3, ...  └────────┘

A node fetches a few pieces at a time, each from the least busy node that has one which it lacks, the rarest first. So
every piece crosses the link of A about once, however many nodes there are: were all of them to read from A, its link
would be divided by their number. A node that is slow or dead holds up the pieces that it was to pass on, for seconds,
and nothing else.

How a piece is transferred is the matter of `NodeRelay`.
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
"""Bytes of a piece: the memory that a transfer takes on either node."""
LANES = 2
"""Number of pieces that a node fetches at a time: one is on its way while the other is written."""
ANSWER_SECONDS = 60.0
"""Seconds within which a relay has to be started and to list the files of its node."""
FIRST_PIECE_SECONDS = 60.0
"""Seconds after which the first piece that a node fetches is fetched from another node instead."""
PATIENCE_SECONDS, PATIENCE = 5.0, 4.0
"""Limit of a later piece: these seconds, and for every piece that its sender is sending a multiple of the slowest."""

Contents: TypeAlias = list[tuple[str, int]]
"""Files of a folder by relative name, with their bytes; of a file one with an empty name. Empty: neither is there."""


class RelayError(InfrastructureError):
    """A file could not be brought to a node, or a node does not answer; the message names the node."""


@dataclass(frozen=True)
class Piece:
    """A range of bytes of one file.

    Attributes:
        name: of the file within the folder; empty: the copied path is a file.
        offset, size: the range, bytes.
    """

    name: str
    offset: int
    size: int


def pieces_of(contents: Contents, size: int) -> list[Piece]:
    """Return the pieces of all files, none larger than `size` bytes."""
    return [
        Piece(name, offset, min(size, whole - offset)) for name, whole in contents for offset in range(0, whole, size)
    ]


class NodeRelay(Protocol):
    """The files of one node, as the controller works with them. Every method may raise `RelayError`.

    A method that is called again, because an answer was lost, has no second effect.

    Attributes:
        name: address of the node.
    """

    name: str

    async def contents(self, path: str) -> Contents:
        """Return what is complete at `path` on the node."""

    async def begin(self, path: str, contents: Contents) -> bool:
        """Make the files that pieces are written to, beside `path`; return True if they were there already."""

    async def fetch(self, holder: Self, path: str, piece: Piece) -> int:
        """Write a piece that `holder` reads from its own node; return the number of bytes written."""

    async def complete(self, path: str, contents: Contents) -> None:
        """Check the sizes of what was written, and put it at `path`."""

    async def remove(self, path: str) -> None:
        """Remove what is at `path`, complete or not."""

    async def is_alive(self) -> bool:
        """Return False if the node has left the cluster."""


Relays: TypeAlias = Callable[[str], NodeRelay]
"""Function that returns the relay of the node with an id."""


class Spread:
    """One file or folder that nodes copy from each other, beginning with the node that has it.

    Attributes:
        path: of the file or folder, on every node.
        origin: id of the node that has it.
        running: number of nodes that are being brought the file.
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
        self._coming: defaultdict[str, set[int]] = defaultdict(set)  # those on their way to a node
        self._copies: Counter[int] = Counter()  # nodes that have a piece, or that it is on its way to
        self._uploads: Counter[str] = Counter()  # pieces that a node is sending
        self._avoided: defaultdict[str, set[str]] = defaultdict(set)  # nodes that did not send to this one
        self._slowest: dict[str, float] = {}  # seconds that a piece to a node takes alone

    async def bring(self, node: str) -> None:
        """Return when the node has the file; a second call goes on where the first has failed.

        Raises:
            RelayError: no node sends it the pieces that it lacks, or it does not write them.
        """
        self.running += 1
        try:
            await self._bring(node)
        finally:
            self.running -= 1

    def forget(self, node: str) -> None:
        """Take from a node no piece any more: its copy is removed."""
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
            self._pieces = pieces_of(self._contents, self._piece_bytes)
            self._all = set(range(len(self._pieces)))
            self._held[self.origin] = self._all

    async def _fetch_all(self, node: str, relay: NodeRelay) -> None:
        while self._lacked(node):
            holder, index = self._choose(node)
            await self._fetch(node, relay, holder, index)

    def _lacked(self, node: str) -> set[int]:
        return self._all - self._held[node] - self._coming[node]

    def _choose(self, node: str) -> tuple[str, int]:
        """Return the node from which a piece is fetched next, and the number of the piece."""
        lacked = self._lacked(node)
        others = self._held.keys() - self._avoided[node] - {node}
        # of nodes that are equally busy the one with fewest pieces, so that the origin is free for those that none has
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
        patience = self._patience(node, uploads)
        try:
            async with asyncio.timeout(patience):
                written = await relay.fetch(sender, self.path, piece)
            if written != piece.size:
                raise RelayError(f"{written} of {piece.size} bytes came")
        except (TimeoutError, RelayError) as error:
            reason = str(error) or f"nothing came for {patience:.0f} s"
            logger.warning("%s: %s asks another node than %s: %s", self.path, relay.name, sender.name, reason)
            self._avoided[node].add(holder)
        else:
            alone = (loop.time() - began) / max(uploads, self._uploads[holder])  # the sender's link was divided
            self._slowest[node] = max(self._slowest.get(node, 0.0), alone)
            self._held[node].add(index)
        finally:
            self._uploads[holder] -= 1
            self._coming[node].discard(index)
            if index not in self._held[node]:
                self._copies[index] -= 1

    def _patience(self, node: str, uploads: int) -> float:
        """Return the seconds after which a node gives up a piece of a sender with this number of uploads."""
        if node not in self._slowest:
            return FIRST_PIECE_SECONDS
        return PATIENCE_SECONDS + PATIENCE * self._slowest[node] * uploads
