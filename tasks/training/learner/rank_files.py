"""Stores learner ranks' checkpoint files in the run folder, or on each rank's node and blob storage."""

from __future__ import annotations

import asyncio
import shutil
import uuid
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from tasks.storage.durable import PARTIAL
from tasks.storage.stored_files import StoredFile
from tasks.storage.uploads import Uploads
from tasks.training.learner.checkpoint_shards import KEEP, SHARDS, LearnerShards, Upload, upload_of
from tasks.training.learner.universal import TAG, make_universal_path


class RankNodes(Protocol):
    """The interface of the learner ranks' nodes for storing files."""

    async def prepare_learner(self, nodes: set[str], run_folder: Path, *, needs_folder: bool) -> set[str]:
        """Copy the model to the nodes, and return the ids of the nodes that do not see the run folder.

        Raises:
            NotSharedError: `needs_folder` is set, and a node does not see the run folder.
            InfrastructureError: a node cannot be prepared.
        """

    async def bring(self, path: Path, nodes: set[str]) -> None:
        """Copy a file or folder from the controller's node to the same path on other nodes, replacing what is there.

        Raises:
            InfrastructureError: copying to a node fails.
        """

    async def collect(self, path: Path, node: str) -> None:
        """Move a file or folder of a node to the same path on the controller's node, which must not exist.

        Raises:
            InfrastructureError: copying fails.
        """

    async def remove(self, path: Path, nodes: set[str]) -> None:
        """Remove a file or folder from nodes; nodes that do not answer keep it."""

    def keep_only(self, folder: Path, names: Collection[str]) -> None:
        """Start removing everything except these names from a folder, on every node."""


@dataclass(frozen=True)
class Source:
    """The folder from which ranks load a checkpoint, on each rank's node.

    Attributes:
        folder: its path, the same on every node.
        fetched: the files that each rank must fetch into it first, by rank, or empty if there are none.
        upload: the upload that contains these files, or None if there are none.
        copies: files and folders that were copied to nodes, and are not needed after loading.
    """

    folder: Path
    fetched: Sequence[dict[str, StoredFile]] = ()
    upload: Upload | None = None
    copies: Sequence[Path] = ()


class RankFiles:
    """Stores checkpoint files of learner ranks: in the run folder, or on each rank's node and on blob storage.

    They are in the run folder if the nodes of all ranks see it. Otherwise, if there is blob storage, they are split.

    Args:
        folder: the run folder.
        storage: the run's address on blob storage, or None if it has none.
        nodes: the cluster's nodes. Optional. If None, all ranks are on the controller's node.
    """

    def __init__(self, folder: Path = Path(), storage: Uploads | None = None, nodes: RankNodes | None = None) -> None:
        self._folder = folder.absolute()
        self._storage = storage
        self._nodes = nodes
        self._by_rank: Sequence[str] = ()
        self._blind: set[str] = set()
        self._saving: tuple[Path, str] | None = None
        self._complete: list[str] = []  # uploads, in their order

    @property
    def is_uploading(self) -> bool:
        """Return True if the ranks upload the files of the last save."""
        return self._saving is not None

    async def prepare(self, by_rank: Sequence[str]) -> None:
        """Prepare the nodes of the ranks, given by rank, and check whether they see the run folder.

        Raises:
            NotSharedError: a node does not see it, and the run has no address on blob storage.
            InfrastructureError: a node cannot be prepared.
        """
        self._by_rank = by_rank
        if self._nodes:
            needs_folder = self._storage is None
            self._blind = await self._nodes.prepare_learner(set(by_rank), self._folder, needs_folder=needs_folder)

    def begin(self, learner: Path) -> tuple[str, Upload | None]:
        """Return the folder that ranks save to, and the upload of its files, or None if they are not uploaded.

        Args:
            learner: the learner's folder of the checkpoint.
        """
        self._saving = None
        if not self._blind:
            return str(learner), None
        assert self._storage
        assert self._nodes
        name = f"{learner.parent.name.removesuffix(PARTIAL)}.{uuid.uuid4().hex[:8]}"
        self._saving = learner, name
        self._nodes.keep_only(self._folder / SHARDS, [*self._complete[-KEEP:], name])
        return str(self._folder / SHARDS / name), Upload(self._storage, name)

    def complete(self, by_rank: Iterable[dict[str, StoredFile]]) -> None:
        """Write `parts.json`, with the files that each rank has uploaded."""
        assert self._saving
        assert self._storage
        learner, name = self._saving
        files = {file: stored for of_rank in by_rank for file, stored in of_rank.items()}
        LearnerShards(address=self._storage.address, upload=name, files=files).write(learner)
        self._complete.append(name)
        self._saving = None

    async def source(self, learner: Path) -> Source:
        """Return where ranks load from, after copying the controller's files to nodes that do not see them.

        Args:
            learner: the learner's folder of the checkpoint.

        Raises:
            MistakeError: the files are on blob storage, and this run has no address there.
            InfrastructureError: copying to a node fails.
        """
        universal = make_universal_path(learner)
        shards = None if universal.is_dir() else LearnerShards.read(learner)
        if shards:
            upload = upload_of(shards, self._storage)
            if shards.upload not in self._complete:
                self._complete.append(shards.upload)
            return Source(self._folder / SHARDS / shards.upload, shards.split_by_rank(self._by_rank), upload)
        if not self._blind:
            return Source(learner)
        assert self._nodes
        states = universal if universal.is_dir() else learner / TAG
        copies = [states, *learner.glob("*.safetensors")]
        for path in copies:
            await self._nodes.bring(path.absolute(), self._blind)
        return Source(learner.absolute(), copies=copies)

    async def remove_copies(self, source: Source) -> None:
        """Remove files that were only copied for loading."""
        if self._nodes:
            for path in source.copies:
                await self._nodes.remove(path, self._blind)
        if source.fetched and not self._blind:  # nodes that see the run folder save into it from now on
            await asyncio.to_thread(shutil.rmtree, self._folder / SHARDS, ignore_errors=True)

    async def fetch_export(self, folder: Path) -> None:
        """Move the folder of a policy, which rank 0 has written on its node, to the controller's node.

        Raises:
            InfrastructureError: copying fails.
        """
        if self._blind and self._by_rank[0] in self._blind:
            assert self._nodes
            await self._nodes.collect(folder.absolute(), self._by_rank[0])

    def upload(self, source: Source) -> Upload:
        """Return the upload with the files that ranks fetch for `source`."""
        assert source.upload
        return source.upload

    def reject(self, learner: Path, source: Source) -> None:
        """Remove a checkpoint with damaged shards, here and on the storage."""
        self.upload(source).reject(learner)
