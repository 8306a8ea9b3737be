"""Nodes that are folders here, joined by links of a clock: a piece takes a second of a link, which pieces share."""

import asyncio
import shutil
from collections import Counter
from pathlib import Path

from tasks.training.actors.broadcast import RelayError
from tasks.training.cluster.relay import RelayProcess

TICK_SECONDS = 0.1


class FileRelay:
    """The relay of a node: the code of the real one, on a folder, with a link that pieces share in either direction.

    Attributes:
        name: that of its folder.
        received: pieces that it wrote, by name and offset.
        sent: number of pieces that it read.
        seconds: that a piece takes on its link alone.
        hangs, lost: True: a piece that it is to send never comes; every call fails.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self.name = root.name
        root.mkdir()
        self.received = Counter()
        self.sent = 0
        self.seconds = 1.0
        self.hangs = self.lost = False
        self._files = object.__new__(RelayProcess)
        self._up = self._down = 0  # pieces on its link

    def at(self, path: str) -> str:
        """A path of the node, as the folder has it."""
        return str(self.root / path.lstrip("/"))

    async def contents(self, path):
        return self._now().contents(self.at(path))

    async def begin(self, path, contents):
        return self._now().begin(self.at(path), contents)

    async def fetch(self, holder, path, piece):
        self._now()
        await self._carry(holder)
        holder.sent += 1
        try:
            data = holder._now().read(holder.at(path), piece)
        except OSError as error:
            raise RelayError(f"{holder.root.name}: {error}") from error
        self.received[piece.name, piece.offset] += 1
        return self._now().write(self.at(path), piece, data)

    async def _carry(self, holder):
        left = 1.0
        holder._up += 1
        self._down += 1
        try:
            while left > 0:
                await asyncio.sleep(TICK_SECONDS)
                if not (holder.hangs or holder.lost):
                    left -= TICK_SECONDS / max(holder._up * holder.seconds, self._down * self.seconds)
        finally:
            holder._up -= 1
            self._down -= 1

    async def complete(self, path, contents):
        self._now().complete(self.at(path), contents)

    async def remove(self, path):
        self._now().remove(self.at(path))

    async def is_alive(self):
        return not self.lost

    def _now(self):
        if self.lost:
            raise RelayError(f"{self.root.name} is lost")
        return self._files

    def lose(self):
        """Its node is gone, with its files."""
        self.lost = True
        shutil.rmtree(self.root)


class Nodes(dict):
    """Relays by the ids of nodes, which are made when they are asked for."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def __missing__(self, node: str) -> FileRelay:
        self[node] = FileRelay(self._folder / node)
        return self[node]
