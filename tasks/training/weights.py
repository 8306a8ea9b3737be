"""The files through which new weights reach the actors."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path


class WeightStore:
    """One safetensors file per policy version, in shared memory or on shared storage.

    A file goes when a newer one is out and no actor is reading it. Version 0 is the initial checkpoint and has no file.

    Attributes:
        version: the newest published version.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._readers: Counter[int] = Counter()
        self._changed = asyncio.Condition()
        self.version = 0
        self.clear()

    def path(self, version: int) -> Path:
        """Where the weights of `version` are, or will be."""
        return self._folder / f"v{version:08d}.safetensors"

    async def publish(self, version: int) -> None:
        """The file of `version` is complete: actors take it from now on."""
        self.version = version
        self._drop_old()
        async with self._changed:
            self._changed.notify_all()

    async def newer_than(self, version: int) -> None:
        """Return when a version above `version` is published."""
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version)

    @contextlib.contextmanager
    def open(self) -> Iterator[tuple[int, Path]]:
        """The newest version and its file, which stays for the length of the block."""
        version = self.version
        self._readers[version] += 1
        try:
            yield version, self.path(version)
        finally:
            self._readers[version] -= 1
            self._drop_old()

    def clear(self) -> None:
        """Remove every file, those that an earlier, killed run left behind included."""
        for path in self._folder.glob("v*.safetensors*"):
            path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Remove every file and the folder."""
        self.clear()
        self._folder.rmdir()

    def _drop_old(self) -> None:
        for path in self._folder.glob("v*.safetensors"):
            version = int(path.stem[1:])
            if version < self.version and not self._readers[version]:
                path.unlink(missing_ok=True)
