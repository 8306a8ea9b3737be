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
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.failures import InfrastructureError, MistakeError, one_line
from tasks.storage.durable import write_whole
from tasks.storage.stored_files import DamagedError, StoredFile, StoredFiles, StoreError
from tasks.storage.uploads import MANIFEST, Uploads
from tasks.training.learner.universal import make_universal_path

logger = logging.getLogger(__name__)

KEEP = 2
"""Number of complete checkpoints that are kept: in the run folder, on the nodes of ranks, and on blob storage."""
SHARDS = "parts"
"""Name of the folder with the files of ranks, in the run folder and in an upload."""

_OF_ONE_RANK = re.compile(r"(?:^|/)(?:bf16_)?zero_pp_rank_(\d+)_")
"""DeepSpeed's names of the files that only one rank writes and reads; other files are read by every rank."""


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
class Upload:
    """The checkpoint files of learner ranks in one upload of a run. Ranks upload and download them directly.

    It is sent to the ranks' processes.

    Attributes:
        uploads: the uploads of the run.
        name: name of the upload.
    """

    uploads: Uploads
    name: str

    def put(self, folder: Path, files: Iterable[Path]) -> dict[str, StoredFile]:
        """Upload files that are below `folder`; return them by their paths relative to it.

        Raises:
            ShardUploadError: a file could not be uploaded.
        """
        stored = {}
        for path in files:
            name = path.relative_to(folder).as_posix()
            try:
                stored[name] = self.uploads.put(self.name, f"{SHARDS}/{name}", path)
            except Exception as error:  # fsspec's file systems have no common error class
                raise ShardUploadError(
                    f"{self._address}/{SHARDS}/{name} was not uploaded: {one_line(error)}"
                ) from error
        return stored

    def fetch(self, folder: Path, files: dict[str, StoredFile]) -> None:
        """Download files into `folder`, except files that it already contains with the right size.

        Raises:
            DamagedError: a file is missing on the storage, or differs from what was uploaded.
            StoreError: the storage does not answer.
        """
        for name, file in files.items():
            path = folder / name
            if path.is_file() and path.stat().st_size == file.size:  # a file gets its name when it is complete
                continue
            try:
                self.uploads.fetch(self.name, f"{SHARDS}/{name}", path, file)
            except DamagedError:
                raise
            except Exception as error:  # fsspec's file systems have no common error class
                raise StoreError(f"{self._address}/{SHARDS}/{name} cannot be read: {one_line(error)}") from error

    def lack(self, files: dict[str, StoredFile]) -> str:
        """Return the name of a file that is missing on the storage or has a wrong size there, or "" if none is."""
        sizes = self.uploads.list_sizes(f"{self.name}/{SHARDS}")
        return next((name for name, file in files.items() if sizes.get(name) != file.size), "")

    def reject(self, learner: Path) -> None:
        """Remove a checkpoint with damaged shards: its folder, and its manifest, so that no attempt resumes from it.

        Args:
            learner: the learner's folder of the checkpoint.
        """
        try:
            self.uploads.withdraw(self.name)
        except Exception as error:  # the next attempt finds the damage again
            logger.warning("%s/%s could not be deleted: %s", self._address, MANIFEST, one_line(error))
        shutil.rmtree(learner.parent, ignore_errors=True)

    @property
    def _address(self) -> str:
        return f"{self.uploads.address}/{self.name}"


def fetch_whole(learner: Path, storage: Uploads | None) -> None:
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
    upload = upload_of(shards, storage)
    try:
        upload.fetch(learner, shards.files)
    except DamagedError as error:
        upload.reject(learner)
        raise StoreError(f"{error}; the next attempt continues from the checkpoint before it") from error


def upload_of(shards: LearnerShards, storage: Uploads | None) -> Upload:
    """Return the upload that contains the shards.

    Raises:
        MistakeError: the run has no storage, although the shards are on blob storage.
    """
    if storage is None:
        raise MistakeError(
            f"the learner's part of checkpoint {shards.upload} is at {shards.address}, but the run is stored in a "
            "folder: set RLVR_RUNS to the address of all runs, which contains it"
        )
    return Upload(storage, shards.upload)
