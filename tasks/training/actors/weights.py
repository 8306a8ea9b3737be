"""Passes the learner's new weights to the actors through files: on one node, one file in shared memory for all."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import hashlib
import logging
import os
import shutil
import uuid
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tasks.sizing.pod_sizes import VERSIONS
from tasks.storage.lease import RunInUseError
from tasks.storage.model_folder import count_weight_bytes
from tasks.storage.tensor_digest import NOTHING, Contents
from tasks.training.actors.process import ActorLostError
from tasks.training.runtime.timeouts import NO_LIMIT, Limit, wait_within

logger = logging.getLogger(__name__)

SHARED_MEMORY = Path("/dev/shm")  # noqa: S108 a folder per run, removed by the run or by the next
"""Folder of the machine's shared memory."""


def compute_needed_memory(model: Path, widening: int) -> int:
    """Return the maximum shared memory that weights take on one node, in bytes.

    Args:
        model: Hugging Face folder of the initial checkpoint.
        widening: size of a weights file relative to the checkpoint.
    """
    return VERSIONS * widening * count_weight_bytes(model)


def open_weights_folder(
    run_folder: Path, model: Path, *, widening: int = 1, root: Path = SHARED_MEMORY
) -> contextlib.AbstractContextManager[Path]:
    """Return a context manager for the folder through which learner and actors of one node exchange weights.

    It is in shared memory if there is enough of it, otherwise below the run folder. It exists only within the block.

    Args:
        run_folder: the run folder.
        model: Hugging Face folder of the initial checkpoint, used to compute the needed memory.
        widening: size of a weights file relative to the checkpoint.
        root: folder of shared memory.

    Raises:
        RunInUseError: another process exchanges weights for this run folder.
    """
    storage = run_folder / "weights"
    if not os.access(root, os.W_OK):
        return _make_attempt_folder(storage)
    remove_abandoned(root)
    needed = compute_needed_memory(model, widening)  # the default shared memory of a container is often 64 MB
    free = shutil.disk_usage(root).free
    if free < needed:
        logger.warning("%s has %d of %d MB free: weights go through %s", root, free >> 20, needed >> 20, storage)
        return _make_attempt_folder(storage)
    identity = hashlib.sha256(str(run_folder.absolute()).encode()).hexdigest()[:16]
    return make_shared_memory_folder(identity, root)


@contextlib.contextmanager
def _make_attempt_folder(storage: Path) -> Iterator[Path]:
    """Yield a new folder below `storage` for this attempt only, after removing the folders of earlier attempts.

    So an attempt that has lost the run without noticing cannot overwrite or remove the weights of its successor.
    """
    shutil.rmtree(storage, ignore_errors=True)
    folder = storage / uuid.uuid4().hex
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def make_shared_memory_folder(name: str, root: Path) -> Iterator[Path]:
    """Yield a folder in shared memory that only this process uses. It is removed at the end of the block.

    Raises:
        RunInUseError: another process uses a folder of this name.
    """
    remove_abandoned(root)
    with make_locked_folder(root / f"rlvr-{name}") as folder:
        yield folder


@contextlib.contextmanager
def make_locked_folder(folder: Path) -> Iterator[Path]:
    """Create `folder` if it does not exist, lock it, and yield it. It is removed after the block.

    A process that is killed does not remove the folder. The next process that locks it finds the old content.

    Raises:
        RunInUseError: another process has locked it.
    """
    folder.mkdir(exist_ok=True)
    with _lock(folder):
        try:
            yield folder
        finally:
            shutil.rmtree(folder)


def remove_abandoned(root: Path) -> None:
    """Remove the folders of runs that no process has locked.

    A run that is killed does not remove its folder, which takes up memory. But the kernel releases its lock.
    """
    for other in root.glob("rlvr-*"):
        with contextlib.suppress(RunInUseError, FileNotFoundError, PermissionError), _lock(other):
            shutil.rmtree(other)


@contextlib.contextmanager
def _lock(folder: Path) -> Iterator[None]:
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise RunInUseError(f"{folder} is in use: another process works on the same run folder") from None
    try:
        yield
    finally:
        os.close(descriptor)


class Weights(ABC):
    """The published weights of every policy version, which have the same path on every node.

    Version 0 is the initial checkpoint and has no file, unless an adapter is trained. A version is a file, or a folder
    if an adapter is trained.

    Args:
        folder: a folder that only this run uses.

    Attributes:
        version: the newest published version.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._changed = asyncio.Condition()
        self._contents: dict[int, Contents] = {}
        self.version = 0

    def path(self, version: int) -> Path:
        """Return the path of the weights of `version`, which need not exist."""
        return self._folder / f"v{version:08d}"

    async def wait_for_newer(self, version: int, node: str = "", limit: Limit = NO_LIMIT) -> None:
        """Wait until a version above `version` is published, and then until such a version is on the node.

        Raises:
            ActorLostError: there is none on the node after `limit`.
        """
        await self._wait_until_published(version)
        if self.find_newest_version(node) <= version:
            waiting = f"an actor waits until its node has weights above version {version}"
            await wait_within(self._wait_until_arrived(version, node), waiting, limit, error=ActorLostError)

    async def _wait_until_published(self, version: int) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.version > version)

    async def _wait_until_arrived(self, version: int, node: str) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: self.find_newest_version(node) > version)

    def contents(self, version: int) -> Contents:
        """Return the contents of the published weights of `version`, as the learner wrote them."""
        return self._contents[version]

    async def _make_newest(self, version: int, contents: Contents) -> None:
        self.version = version
        self._contents[version] = contents
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()

    @abstractmethod
    async def publish(self, version: int, node: str, contents: Contents = NOTHING) -> None:
        """Make `version` the newest version, which actors take from now on.

        Args:
            version: number of the policy.
            node: id of the node that has the file, or "" for the initial checkpoint, which has no file.
            contents: digest of the file's contents.
        """

    @abstractmethod
    def follow(self, node: str) -> None:
        """Copy new versions to the node with this id from now on, because an actor is placed there."""

    @abstractmethod
    def find_newest_version(self, node: str) -> int:
        """Return the newest version that is on the node, or -1 if there is none."""

    @abstractmethod
    def open(self, node: str) -> contextlib.AbstractContextManager[tuple[int, Path]]:
        """Return a context manager that yields the newest version on the node and the path of its weights.

        The weights are not removed within the block.
        """


class WeightStore(Weights):
    """The published weights if all processes are on one node: files that the learner writes and every actor reads.

    A version is removed when a newer version is published and no actor is reading it.

    Args:
        folder: an empty folder that only this run uses.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        folder.mkdir(parents=True, exist_ok=True)
        self._readers: Counter[int] = Counter()

    async def publish(self, version: int, node: str = "", contents: Contents = NOTHING) -> None:
        """Make `version`, whose file is complete, the newest version, which actors take from now on."""
        await self._make_newest(version, contents)
        self._drop_old()

    def follow(self, node: str) -> None:
        """Do nothing, because the only node has every version."""

    def find_newest_version(self, node: str) -> int:
        """Return the newest published version."""
        return self.version

    @contextlib.contextmanager
    def open(self, node: str = "") -> Iterator[tuple[int, Path]]:
        """Yield the newest version and the path of its weights, which are not removed within the block."""
        version = self.version
        self._readers[version] += 1
        try:
            yield version, self.path(version)
        finally:
            self._readers[version] -= 1
            self._drop_old()

    def _drop_old(self) -> None:
        for path in self._folder.glob("v" + "[0-9]" * 8):
            version = int(path.name[1:])
            if version < self.version and not self._readers[version]:
                _remove(path)


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
