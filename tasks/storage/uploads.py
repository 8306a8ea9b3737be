"""Uploads sets of files to blob storage. A set counts only with its manifest, which is written last and removed first.

    <address>/step_00000004.1a2b3c4d/...            the files of an upload; its name begins with a version
                                    /manifest.json  their names, sizes and digests

An upload without a manifest was interrupted, or is being deleted, and is ignored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from tasks.storage.access import AccessError
from tasks.storage.retries import WAITS, call_with_retries
from tasks.storage.stored_files import DamagedError, StoredFile, StoredFiles, digest, fetch_file, put_file

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

MANIFEST = "manifest.json"
"""Name of the file that makes an upload complete."""

Result = TypeVar("Result")


class Manifest(BaseModel):
    """The files of an upload by their paths in it, and its version."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: int
    files: StoredFiles


@dataclass(frozen=True)
class Uploads:
    """The uploads at the address of a run. Learner ranks get a copy, and upload and download files themselves.

    `put` and `fetch` retry failed calls. Callers of other methods do so with `try_repeatedly`.

    Attributes:
        filesystem: an fsspec file system, with its credentials.
        address: address of the run on it, without a trailing slash.
        waits: pauses in seconds before each retry of a failed call.
    """

    filesystem: AbstractFileSystem
    address: str
    waits: tuple[float, ...] = WAITS

    def try_repeatedly(self, do: Callable[[], Result]) -> Result:
        """Return the result of `do`. Retry it after pauses, except after refusals and damage, which are permanent."""
        return call_with_retries(
            do, self.waits, lambda error: not isinstance(error, AccessError | DamagedError), self.address
        )

    def list_all(self) -> dict[str, bool]:
        """Return the names of all uploads, oldest version first, with True if the upload is complete."""
        names = self.list_sizes()
        uploads = sorted({upload for upload, slash, _ in (name.partition("/") for name in names) if slash})
        return {upload: f"{upload}/{MANIFEST}" in names for upload in uploads if _is_upload(upload)}

    def list_complete(self) -> list[str]:
        """Return the names of the complete uploads, oldest version first."""
        return [upload for upload, is_complete in self.list_all().items() if is_complete]

    def list_sizes(self, folder: str = "") -> dict[str, int]:
        """Return the sizes in bytes of all files in a folder at the address, by path relative to the folder.

        The result is empty if the folder does not exist.
        """
        root = self.filesystem._strip_protocol(f"{self.address}/{folder}".rstrip("/"))
        self.filesystem.invalidate_cache()
        try:
            files = self.filesystem.find(root, detail=True)
        except FileNotFoundError:
            return {}
        below = {path: about["size"] for path, about in files.items() if path.startswith(f"{root}/")}
        return {path.removeprefix(f"{root}/"): size for path, size in below.items()}

    def put(self, upload: str, name: str, path: Path, length: int | None = None) -> StoredFile:
        """Upload a file as `name`, and return its size and digest.

        Args:
            upload: name of the upload.
            name: path of the file in the upload.
            path: the file.
            length: number of bytes to upload if the file may grow meanwhile. Optional. If None, the whole file.
        """
        stored = digest(path, path.stat().st_size if length is None else length)
        self.try_repeatedly(partial(self._put, f"{self.address}/{upload}/{name}", path, length))
        return stored

    def _put(self, address: str, path: Path, length: int | None) -> None:
        if length is None:
            put_file(self.filesystem, path, address)
            return
        with path.open("rb") as file:
            self.filesystem.pipe_file(address, file.read(length))

    def fetch(self, upload: str, name: str, path: Path, expected: StoredFile) -> None:
        """Download the file `name` of an upload to `path` (`fetch_file`).

        Raises:
            DamagedError: the file is missing or is not the expected one.
            Exception: an error of the file system if the storage does not answer.
        """
        address = f"{self.address}/{upload}/{name}"
        self.try_repeatedly(partial(fetch_file, self.filesystem, address, path, expected))

    def write_manifest(self, upload: str, manifest: Manifest) -> None:
        """Write the manifest of an upload, after all of its files."""
        self.filesystem.pipe_file(f"{self.address}/{upload}/{MANIFEST}", manifest.model_dump_json().encode())

    def read_manifest(self, upload: str) -> Manifest:
        """Return the manifest of an upload.

        Raises:
            DamagedError: it is missing or malformed.
        """
        try:
            return Manifest.model_validate_json(self.filesystem.cat_file(f"{self.address}/{upload}/{MANIFEST}"))
        except (ValidationError, FileNotFoundError) as error:
            raise DamagedError(f"its {MANIFEST} cannot be read: {str(error).splitlines()[0]}") from None

    def withdraw(self, upload: str) -> None:
        """Remove the manifest of an upload, if it has one, so that no attempt resumes from it."""
        path = f"{self.address}/{upload}/{MANIFEST}"
        self.filesystem.invalidate_cache()
        if self.filesystem.exists(path):
            self.filesystem.rm_file(path)

    def delete(self, upload: str) -> None:
        """Delete an upload, its manifest first, so that an interrupted deletion does not look complete."""
        self.withdraw(upload)
        for path in self.filesystem.find(f"{self.address}/{upload}"):
            self.filesystem.rm_file(path)


def _is_upload(name: str) -> bool:
    head, _, upload = name.partition(".")
    return head.startswith("step_") and head[5:].isdecimal() and bool(upload)


def parse_version(name: str) -> int:
    """Return the version in the name of a checkpoint or an upload."""
    return int(name.removeprefix("step_").partition(".")[0])
