"""Files of the user's that a launch has put into storage, because pods do not see the machine that it came from."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

from pydantic import BeforeValidator, Field

from tasks.config import Config
from tasks.failures import MistakeError
from tasks.storage.addresses import open_address

if TYPE_CHECKING:
    from fsspec import AbstractFileSystem

BLOCK = 1 << 20
"""Bytes that are read at a time."""


class SentFileError(MistakeError):
    """The copy of a file in storage is gone, or is another file."""


class SentFile(Config):
    """A file of the user's, and where its copy lies."""

    named: str
    """The path or glob by which the user's specification names it, absolute."""
    path: str
    """Path of the file on the machine of the launch."""
    address: str
    """Address of the copy, whose name ends as that of the file does."""
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    """SHA-256 of its content."""

    def __str__(self) -> str:
        """Return the path on the user's machine, for messages."""
        return self.path

    def opened(self) -> tuple[AbstractFileSystem, str]:
        """Return the file system of the copy, and its path there.

        Raises:
            SentFileError: it is gone.
            AddressRefusedError: the storage refuses to show it.
        """
        filesystem, path = open_address(self.address)
        if not filesystem.isfile(path):
            raise SentFileError(f"{self.path}: its copy in storage, {self.address}, is gone: launch the run again")
        return filesystem, path

    def check(self) -> None:
        """Read the copy and compare it with the digest.

        Raises:
            SentFileError: it is gone, or is another file.
            AddressRefusedError: the storage refuses to show it.
        """
        filesystem, path = self.opened()
        digest = hashlib.sha256()
        with filesystem.open(path, "rb") as file:
            while block := file.read(BLOCK):
                digest.update(block)
        self._compare(digest.hexdigest())

    def read(self) -> bytes:
        """Return the content, as `check` compares it.

        Raises:
            SentFileError: as `check` raises it.
            AddressRefusedError: the storage refuses to show it.
        """
        filesystem, path = self.opened()
        content = bytes(filesystem.cat_file(path))
        self._compare(hashlib.sha256(content).hexdigest())
        return content

    def _compare(self, sha256: str) -> None:
        if sha256 != self.sha256:
            raise SentFileError(
                f"{self.path}: its copy in storage, {self.address}, is another file than was sent: launch the run again"
            )


FilePath = Annotated[str | SentFile, BeforeValidator(lambda value: value, json_schema_input_type=str)]
"""The type of the path or address of a file. A launch puts a `SentFile` in the place of a path; no user writes one."""


def read_file(file: str | SentFile) -> bytes:
    """Return the content of a file at a path or an address.

    Raises:
        OSError, ValueError, ImportError: it cannot be read.
        SentFileError, AddressRefusedError: as `SentFile.read` raises them.
    """
    if isinstance(file, SentFile):
        return file.read()
    filesystem, path = open_address(file)
    return bytes(filesystem.cat_file(path))
