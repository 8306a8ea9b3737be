"""Stores ranks' checkpoint shards if nodes share no disk: each rank's files on its own node and on blob storage.

    controller's node  <run folder>/checkpoints/step_00000004/learner/parts.json   names the upload and its files
    node of rank 1     <run folder>/parts/step_00000004.1a2b3c4d/rlvr/zero_pp_rank_1_...      its own files
    blob storage       <address>/step_00000004.1a2b3c4d/parts/rlvr/zero_pp_rank_0_..., zero_pp_rank_1_..., ...

A rank writes its files to the disk of its node, and uploads them in the background during training. When all ranks have
uploaded, the controller writes `parts.json`, and the checkpoint is complete. The run's store uploads the controller's
files and the manifest, without which an upload does not count (`records/remote_store.py`). A rank loads the files that
are on its node's disk, and fetches the rest.
"""

from __future__ import annotations

import logging
import re
import shutil
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.failures import InfrastructureError, MistakeError, one_line
from tasks.storage.durable import write_whole
from tasks.storage.retries import WAITS, retrying
from tasks.storage.stored_files import DamagedError, StoredFile, StoredFiles, StoreError, digest, fetch_file, put_file
from tasks.training.learner.universal import make_universal_path

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

logger = logging.getLogger(__name__)

KEEP = 2
"""Number of complete checkpoints that are kept: in the run folder, on the nodes of ranks, and on blob storage."""
MANIFEST = "manifest.json"
"""Name of the file that makes an upload to blob storage complete; it is written last."""
SHARDS = "parts"
"""Name of the folder with the files of ranks, in the run folder and in an upload."""

_OF_ONE_RANK = re.compile(r"(?:^|/)(?:bf16_)?zero_pp_rank_(\d+)_")
"""DeepSpeed's names of the files that only one rank writes and reads; other files are read by every rank."""

Result = TypeVar("Result")


class ShardUploadError(InfrastructureError):
    """A rank could not upload its checkpoint files, so the checkpoint is discarded; training continues."""


class LearnerShards(BaseModel):
    """The names of the files that the ranks have uploaded for one checkpoint: the contents of `parts.json`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    address: str
    """Address of the run on blob storage."""
    upload: str
    """Name of the upload below that address, which is new for each checkpoint."""
    files: StoredFiles
    """The files of all ranks, by their paths below the learner's folder."""

    @classmethod
    def read(cls, learner: Path) -> LearnerShards | None:
        """Return the shards of the checkpoint in the folder `learner`, or None if the folder itself contains the files.

        Raises:
            DamagedError: the file cannot be read.
        """
        try:
            return cls.model_validate_json((learner / f"{SHARDS}.json").read_bytes())
        except FileNotFoundError:
            return None
        except ValidationError as error:
            raise DamagedError(f"{learner}/{SHARDS}.json cannot be read: {one_line(error)}") from None

    def write(self, learner: Path) -> None:
        """Write `parts.json` into the learner's folder, which is created if it does not exist."""
        learner.mkdir(parents=True, exist_ok=True)
        with write_whole(learner / f"{SHARDS}.json") as unfinished:
            unfinished.write_text(self.model_dump_json())

    def split_by_rank(self, nodes: Sequence[str]) -> list[dict[str, StoredFile]]:
        """Return the files that each rank has to fetch.

        These are its own files and, for the first rank of a node, the shared files.

        Args:
            nodes: the ids of the ranks' nodes, by rank.
        """
        common = {name: file for name, file in self.files.items() if _parse_owner(name) is None}
        return [
            {
                **{name: file for name, file in self.files.items() if _parse_owner(name) == rank},
                **(common if nodes.index(node) == rank else {}),
            }
            for rank, node in enumerate(nodes)
        ]


def _parse_owner(name: str) -> int | None:
    match = _OF_ONE_RANK.search(name)
    return int(match[1]) if match else None


@dataclass(frozen=True)
class ShardStorage:
    """The address of a run on blob storage. Learner ranks upload and download their checkpoint files there directly.

    It is sent to the ranks' processes.

    Attributes:
        filesystem: an fsspec file system, with its credentials.
        address: address of the run on it, without a trailing slash.
        waits: pauses in seconds before each retry of a failed call.
    """

    filesystem: AbstractFileSystem
    address: str
    waits: tuple[float, ...] = WAITS

    def put(self, upload: str, folder: Path, files: Iterable[Path]) -> dict[str, StoredFile]:
        """Upload files that are below `folder`; return them by their paths relative to it.

        Raises:
            ShardUploadError: a file could not be uploaded.
        """
        stored = {}
        for path in files:
            name = path.relative_to(folder).as_posix()
            target = f"{self._format_address(upload)}/{name}"
            try:
                stored[name] = digest(path, path.stat().st_size)
                self._retry(partial(put_file, self.filesystem, path, target))
            except Exception as error:  # fsspec's file systems have no common error class
                raise ShardUploadError(f"{target} was not uploaded: {one_line(error)}") from error
        return stored

    def fetch(self, upload: str, folder: Path, files: dict[str, StoredFile]) -> None:
        """Download files into `folder`, except files that it already contains with the right size.

        Raises:
            DamagedError: a file is missing on the storage, or differs from what was uploaded.
            StoreError: the storage does not answer.
        """
        for name, file in files.items():
            path = folder / name
            if path.is_file() and path.stat().st_size == file.size:  # a file gets its name when it is complete
                continue
            address = f"{self._format_address(upload)}/{name}"
            try:
                self._retry(partial(fetch_file, self.filesystem, address, path, file))
            except DamagedError:
                raise
            except Exception as error:  # fsspec's file systems have no common error class
                raise StoreError(f"{address} cannot be read: {one_line(error)}") from error

    def find_missing(self, shards: LearnerShards) -> str:
        """Return the name of a file that is missing on the storage or has a wrong size there, or "" if none is."""
        root = self.filesystem._strip_protocol(self._format_address(shards.upload))
        self.filesystem.invalidate_cache()
        try:
            held = self.filesystem.find(root, detail=True)
        except FileNotFoundError:
            held = {}
        sizes = {path.removeprefix(f"{root}/"): about["size"] for path, about in held.items()}
        return next((name for name, file in shards.files.items() if sizes.get(name) != file.size), "")

    def reject(self, upload: str) -> None:
        """Remove the manifest of a damaged upload, so that no attempt resumes from it."""
        manifest = f"{self.address}/{upload}/{MANIFEST}"
        try:
            self.filesystem.invalidate_cache()
            if self.filesystem.exists(manifest):
                self.filesystem.rm_file(manifest)
        except Exception as error:  # the next attempt finds the damage again
            logger.warning("%s could not be deleted: %s", manifest, one_line(error))

    def _format_address(self, upload: str) -> str:
        return f"{self.address}/{upload}/{SHARDS}"

    def _retry(self, do: Callable[[], Result]) -> Result:
        return retrying(do, self.waits, lambda error: not isinstance(error, DamagedError), self.address)


@dataclass(frozen=True)
class Upload:
    """The place on blob storage for the upload of one checkpoint, and its name there."""

    storage: ShardStorage
    name: str

    def put(self, folder: Path, files: Iterable[Path]) -> dict[str, StoredFile]:
        """Upload files below `folder`, as `ShardStorage.put` does."""
        return self.storage.put(self.name, folder, files)


def fetch_whole(learner: Path, storage: ShardStorage | None) -> None:
    """Download the files of all ranks into the learner's folder of a checkpoint, if they are only on blob storage.

    Args:
        learner: the learner's folder.
        storage: the run's address on blob storage.

    Raises:
        MistakeError: the files are on blob storage, and this run has no address there.
        StoreError: the storage does not answer, or a file is damaged; the checkpoint is then removed.
    """
    shards = LearnerShards.read(learner)
    if shards is None or make_universal_path(learner).is_dir():
        return
    storage = find_storage(shards, storage)
    try:
        storage.fetch(shards.upload, learner, shards.files)
    except DamagedError as error:
        reject(learner, storage, shards.upload)
        raise StoreError(f"{error}; the next attempt continues from the checkpoint before it") from error


def reject(learner: Path, storage: ShardStorage, upload: str) -> None:
    """Remove a checkpoint with damaged shards, in the run folder and on the storage.

    Args:
        learner: the learner's folder of the checkpoint.
        storage: the run's address on blob storage.
        upload: name of the checkpoint's upload there.
    """
    storage.reject(upload)
    shutil.rmtree(learner.parent, ignore_errors=True)


def find_storage(shards: LearnerShards, storage: ShardStorage | None) -> ShardStorage:
    """Return the storage that contains the shards.

    Raises:
        MistakeError: the run has no storage, although the shards are on blob storage.
    """
    if storage is None:
        raise MistakeError(
            f"the learner's part of checkpoint {shards.upload} is at {shards.address}, but the run is stored in a "
            "folder: set RLVR_RUNS to the address of all runs, which contains it"
        )
    return storage
