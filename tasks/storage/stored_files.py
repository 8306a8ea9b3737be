"""Uploads files, and checks size and digest of downloads, so that damaged or truncated files are never used."""

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
"""Part size in bytes for uploads of large files."""
MOST_PARTS = 10_000
"""Maximum number of parts of a file on S3."""
IN_PARTS = frozenset({"s3", "s3a", "gs", "gcs"})
"""Protocols whose file systems upload in parts of a given size."""


class StoreError(InfrastructureError):
    """The blob storage does not answer, or a checkpoint on it is damaged."""


class DamagedError(ValueError):
    """Uploaded files are incomplete, or their content differs from what was uploaded."""


class StoredFile(BaseModel):
    """The size of an uploaded file in bytes, and its SHA-256 as hex digits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    size: int
    sha256: str


def _check_inside(files: dict[str, StoredFile]) -> dict[str, StoredFile]:
    for name in files:
        if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
            raise ValueError(f"{name} is not below its folder")
    return files


StoredFiles = Annotated[dict[str, StoredFile], AfterValidator(_check_inside)]
"""Uploaded files, by path relative to a folder. Paths that lead out of the folder are refused."""


def digest(path: Path, length: int) -> StoredFile:
    """Return the size and SHA-256 of the first `length` bytes of the file `path`."""
    sha: Any = hashlib.sha256()
    left = length
    with path.open("rb") as file:
        while left and (block := file.read(min(left, 1 << 20))):
            sha.update(block)
            left -= len(block)
    return StoredFile(size=length - left, sha256=sha.hexdigest())


def put_file(filesystem: AbstractFileSystem, path: Path, address: str) -> None:
    """Upload the file `path` to `address`.

    To S3 and Google's storage, the file is uploaded in parts of `PART_BYTES`, ten at a time. By default s3fs and gcsfs
    use parts of 50 MiB, which need one GiB of memory.

    Raises:
        Exception: an error of the file system if the storage does not accept the file.
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
    """Download the file at `address` to `path` atomically. Several processes may do so at the same time.

    Raises:
        DamagedError: the file is missing or is not the expected one.
        Exception: an error of the file system if the storage does not answer.
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
