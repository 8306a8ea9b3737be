"""Stores learner ranks' files of checkpoints in the run folder, or on each rank's node and blob storage."""

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
from tasks.training.learner.checkpoint_shards import KEEP, PARTS, LearnerParts, PartStorage, Upload, reject, storage_of
from tasks.training.learner.universal import TAG, universal_in


class RankNodes(Protocol):
    """The nodes of learner ranks, as far as their files need them."""

    async def prepare_learner(self, nodes: set[str], run_folder: Path, *, needs_folder: bool) -> set[str]:
        """Bring the model to the nodes, and return the ids of those that do not see the run folder.

        Raises:
            NotSharedError: there is one, with `needs_folder`.
            InfrastructureError: a node cannot be prepared.
        """

    async def bring(self, path: Path, nodes: set[str]) -> None:
        """Copy a file or folder of the controller's node to the same path on other nodes, in place of what is there.

        Raises:
            InfrastructureError: a node does not get it.
        """

    async def collect(self, path: Path, node: str) -> None:
        """Move a file or folder of a node to the same path on the controller's, where nothing is.

        Raises:
            InfrastructureError: it does not arrive.
        """

    async def remove(self, path: Path, nodes: set[str]) -> None:
        """Remove a file or folder from nodes; one that does not answer keeps it."""

    def keep_only(self, folder: Path, names: Collection[str]) -> None:
        """Begin to remove everything from a folder but these names, on every node."""


@dataclass(frozen=True)
class Source:
    """The folder from which ranks load a checkpoint, on their own nodes.

    Attributes:
        folder: its path, the same on every node.
        fetched: what each rank has to fetch into it before, by rank; empty: nothing.
        upload: name of the upload that holds these files.
        copies: files and folders that were copied to nodes, and are of no use once they are loaded.
    """

    folder: Path
    fetched: Sequence[dict[str, StoredFile]] = ()
    upload: str = ""
    copies: Sequence[Path] = ()


class RankFiles:
    """The files of learner ranks in checkpoints: in the run folder, or of each rank on its own node and on storage.

    They are in the run folder where the nodes of all ranks see it; otherwise, with storage, they are split.

    Args:
        folder: the run folder.
        storage: the run's address on blob storage; None: it has none.
        nodes: the cluster's nodes; None: all ranks are on the controller's.
    """

    def __init__(
        self, folder: Path = Path(), storage: PartStorage | None = None, nodes: RankNodes | None = None
    ) -> None:
        self._folder = folder.absolute()
        self._storage = storage
        self._nodes = nodes
        self._by_rank: Sequence[str] = ()
        self._blind: set[str] = set()
        self._saving: tuple[Path, str] | None = None
        self._complete: list[str] = []  # uploads, in their order

    @property
    def is_uploading(self) -> bool:
        """Return True if the ranks upload what they were last asked to save."""
        return self._saving is not None

    async def prepare(self, by_rank: Sequence[str]) -> None:
        """Prepare the nodes of the ranks, given by rank, and find out whether they see the run folder.

        Raises:
            NotSharedError: one does not, and the run has no address on blob storage.
            InfrastructureError: a node cannot be prepared.
        """
        self._by_rank = by_rank
        if self._nodes:
            needs_folder = self._storage is None
            self._blind = await self._nodes.prepare_learner(set(by_rank), self._folder, needs_folder=needs_folder)

    def begin(self, learner: Path) -> tuple[str, Upload | None]:
        """Return the folder that ranks save to, and the upload of what they write there; None: it stays there.

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
        self._nodes.keep_only(self._folder / PARTS, [*self._complete[-KEEP:], name])
        return str(self._folder / PARTS / name), Upload(self._storage, name)

    def complete(self, by_rank: Iterable[dict[str, StoredFile]]) -> None:
        """Write `parts.json`, with the files that each rank has uploaded."""
        assert self._saving
        assert self._storage
        learner, name = self._saving
        files = {file: stored for of_rank in by_rank for file, stored in of_rank.items()}
        LearnerParts(address=self._storage.address, upload=name, files=files).write(learner)
        self._complete.append(name)
        self._saving = None

    async def source(self, learner: Path) -> Source:
        """Return where ranks load from, after the controller's files were copied to nodes that do not see them.

        Args:
            learner: the learner's folder of the checkpoint.

        Raises:
            MistakeError: the files are on blob storage, and this run has no address there.
            InfrastructureError: a node does not get its copy.
        """
        universal = universal_in(learner)
        parts = None if universal.is_dir() else LearnerParts.read(learner)
        if parts:
            storage_of(parts, self._storage)
            if parts.upload not in self._complete:
                self._complete.append(parts.upload)
            return Source(self._folder / PARTS / parts.upload, parts.by_rank(self._by_rank), parts.upload)
        if not self._blind:
            return Source(learner)
        assert self._nodes
        states = universal if universal.is_dir() else learner / TAG
        copies = [states, *learner.glob("*.safetensors")]
        for path in copies:
            await self._nodes.bring(path.absolute(), self._blind)
        return Source(learner.absolute(), copies=copies)

    async def remove_copies(self, source: Source) -> None:
        """Remove what was copied for loading, and is not used again."""
        if self._nodes:
            for path in source.copies:
                await self._nodes.remove(path, self._blind)
        if source.fetched and not self._blind:  # nodes that see the run folder save into it from now on
            await asyncio.to_thread(shutil.rmtree, self._folder / PARTS, ignore_errors=True)

    async def fetch_export(self, folder: Path) -> None:
        """Bring the folder of a policy, which rank 0 has written on its node, to the controller's.

        Raises:
            InfrastructureError: it does not arrive.
        """
        if self._blind and self._by_rank[0] in self._blind:
            assert self._nodes
            await self._nodes.collect(folder.absolute(), self._by_rank[0])

    def upload(self, source: Source) -> Upload:
        """Return the upload with the files that ranks fetch for `source`."""
        assert self._storage
        return Upload(self._storage, source.upload)

    def reject(self, learner: Path, source: Source) -> None:
        """Remove a checkpoint whose parts are damaged, here and on the storage."""
        assert self._storage
        reject(learner, self._storage, source.upload)
