"""Uploads files, and downloads them by size and digest, so that one that is damaged or cut short is never used."""

from __future__ import annotations

import hashlib
import math
import os
import uuid
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict

from tasks.failures import InfrastructureError
from tasks.storage.durable import PARTIAL

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


PART_BYTES = 8 * 2**20
"""Size of the parts in which a large file is uploaded."""
MOST_PARTS = 10_000
"""Number of parts that S3 takes of a file."""
IN_PARTS = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols whose file systems upload in parts of the size that they are given."""


class StoreError(InfrastructureError):
    """The blob storage does not answer, or what it holds of a checkpoint turned out to be damaged."""


class DamagedError(ValueError):
    """Uploaded files are incomplete, or their content is not what was uploaded."""


class StoredFile(BaseModel):
    """The size of an uploaded file, bytes, and its SHA-256, hex digits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    sha256: str


def _inside(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{name} is not below its folder")
    return files


StoredFiles = Annotated[dict[str, StoredFile], AfterValidator(_inside)]
"""Uploaded files by their paths relative to a folder; a path that leads out of the folder is refused."""


def digest(path: Path, length: int) -> StoredFile:
    """Return size and SHA-256 of the first `length` bytes of the file `path`."""
    sha: Any = hashlib.sha256()
    left = length
    with path.open("rb") as file:
        while left and (block := file.read(min(left, 1 << 20))):
            sha.update(block)
            left -= len(block)
    return StoredFile(size=length - left, sha256=sha.hexdigest())


def put_file(filesystem: AbstractFileSystem, path: Path, address: str) -> None:
    """Upload the file `path` to `address`.

    S3 and Google's storage get it in parts of `PART_BYTES`, of which ten are on the way at a time. By default s3fs and
    gcsfs take parts of 50 MiB, and need a GiB of memory for them.

    Raises:
        Exception: the file system's own, if the storage does not take it.
    """
    protocols = {filesystem.protocol} if isinstance(filesystem.protocol, str) else set(filesystem.protocol)
    options = {}
    if protocols & IN_PARTS:
        options["chunksize"] = PART_BYTES * max(1, math.ceil(path.stat().st_size / (PART_BYTES * MOST_PARTS)))
    try:
        filesystem.put_file(str(path), address, **options)
    except FileNotFoundError:
        # S3's answer to a completion that is repeated because the answer to the first one came too late, or was lost.
        if not path.exists() or not _is_stored(filesystem, address, path.stat().st_size):
            raise


def _is_stored(filesystem: AbstractFileSystem, address: str, size: int) -> bool:
    filesystem.invalidate_cache()
    try:
        return bool(filesystem.info(address)["size"] == size)
    except FileNotFoundError:
        return False


def fetch_file(filesystem: AbstractFileSystem, address: str, path: Path, expected: StoredFile) -> None:
    """Download the file at `address` to `path`, whole or not at all; several processes may do so at once.

    Raises:
        DamagedError: the file is not there, or is not the expected one.
        Exception: the file system's own, where the storage does not answer.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    arriving = path.with_name(f"{path.name}.{uuid.uuid4().hex[:8]}{PARTIAL}")
    try:
        try:
            filesystem.get_file(address, str(arriving))
        except FileNotFoundError:
            raise DamagedError(f"{address} is missing") from None
        if digest(arriving, arriving.stat().st_size) != expected:
            raise DamagedError(f"{address} is not what was uploaded")
        os.replace(arriving, path)
    finally:
        arriving.unlink(missing_ok=True)
