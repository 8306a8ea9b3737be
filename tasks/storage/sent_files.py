"""Reads copies of the user's files that a launch uploaded to storage.

Pods have no access to the machine that launched the run.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from tasks.config.loading import Config
from tasks.failures import MistakeError
from tasks.storage.addresses import content_sha256, open_address

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem


class SentFileError(MistakeError):
    """The copy of a file in storage is missing or has different content."""


class SentFile(Config):
    """A file of the user and the address of its copy."""

    named: str
    """Absolute path or glob of the file in the user's specification."""
    path: str
    """Path of the file on the launching machine."""
    address: str
    """Address of the copy. Its name has the same suffix as the file."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of the content."""

    def __str__(self) -> str:
        """Return the path on the user's machine, for messages."""
        return self.path

    def opened(self) -> tuple[AbstractFileSystem, str]:
        """Return the file system of the copy and its path there.

        Raises:
            SentFileError: the copy is missing.
            AddressRefusedError: the storage refuses access.
        """
        filesystem, path = open_address(self.address)
        if not filesystem.isfile(path):
            raise SentFileError(f"{self.path}: its copy in storage, {self.address}, is gone: launch the run again")
        return filesystem, path

    def check(self) -> None:
        """Read the copy and compare it with the digest.

        Raises:
            SentFileError: the copy is missing or has different content.
            AddressRefusedError: the storage refuses access.
        """
        self._compare(content_sha256(*self.opened()))

    def read(self) -> bytes:
        """Return the content after comparing it with the digest.

        Raises:
            SentFileError: as `check` raises it.
            AddressRefusedError: the storage refuses access.
        """
        filesystem, path = self.opened()
        content = bytes(filesystem.cat_file(path))
        self._compare(hashlib.sha256(content).hexdigest())
        return content

    def _compare(self, sha256: str) -> None:
        if sha256 != self.sha256:
            raise SentFileError(
                f"{self.path}: its copy in storage, {self.address}, is not the file that was sent: launch the run again"
            )


FilePath = Annotated[str | SentFile, BeforeValidator(lambda value: value, json_schema_input_type=str)]
"""The type of the path or address of a file. A launch replaces paths by `SentFile`s. Users do not write them."""


def read_file(file: str | SentFile) -> bytes:
    """Return the content of a file at a path or an address.

    Raises:
        OSError, ValueError, ImportError: the file cannot be read.
        SentFileError, AddressRefusedError: as `SentFile.read` raises them.
    """
    if isinstance(file, SentFile):
        return file.read()
    filesystem, path = open_address(file)
    return bytes(filesystem.cat_file(path))
