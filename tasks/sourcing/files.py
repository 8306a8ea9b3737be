"""Names the files of a source, which fsspec opens, and defines the entries that are read from them."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from tasks.config import SpecError
from tasks.sourcing.compression import format_of
from tasks.sourcing.loader_specs import HuggingFaceLoader, JsonlLoader, Loader, ParquetLoader
from tasks.storage.addresses import AddressRefusedError, open_address, reported_checksum
from tasks.storage.sent_files import SentFile, SentFileError
from tasks.tables.content_digest import check_table, sha256_of


@dataclass(frozen=True)
class Malformed:
    """An entry of a source that holds no row.

    Attributes:
        reason: the fault of this entry, for people.
        category: the reason without what is particular to the entry; rows are counted by it.
        value: its text.
    """

    reason: str
    category: str
    value: str


Item = dict[str, Any] | Malformed | None
"""An entry of a source: a row by column, one that is malformed, or None for one that is passed over (a blank line)."""


@dataclass(frozen=True)
class File:
    """A file that fsspec can open.

    Attributes:
        filesystem: its file system.
        path: its path there.
        sent: the file of the user's that it is a copy of, or None.
    """

    filesystem: fsspec.AbstractFileSystem
    path: str
    sent: SentFile | None = None

    @property
    def name(self) -> str:
        """The path of the file for messages: that on the user's machine, of a copy."""
        return str(self.sent or self.path)

    @property
    def is_local(self) -> bool:
        """True for a file of this machine's file system."""
        return isinstance(self.filesystem, fsspec.get_filesystem_class("file"))

    def digest(self) -> str:
        """Return the SHA-256 of a local file or of a copy of one, and of another the checksum that storage reports.

        Raises:
            ContentError: a table of this project whose rows are not those of the digest in its footer.
            SentFileError: a copy that is gone, or of another file.
        """
        if self.sent is not None:
            self.sent.check()
            return self.sent.sha256
        if not self.is_local:
            return reported_checksum(self.filesystem, self.path)
        check_table(Path(self.path))
        return sha256_of(Path(self.path))


def endings(path: str) -> str:
    """Return the endings of a file's name by which it is read, in lower case: `.jsonl.gz`, say."""
    name = PurePosixPath(path.lower())
    return "".join(name.suffixes[-2:] if format_of(path) else name.suffixes[-1:])


def named_files(loader: Loader, where: str) -> list[File]:
    """Return the files that a loader names, in that order, those of a glob sorted; no files for a generator.

    Raises:
        SpecError: a path or glob without files; `where` begins the message.
    """
    match loader:
        case JsonlLoader(path=paths) | ParquetLoader(path=paths):
            field = f"{where}.path"
        case HuggingFaceLoader(files=paths) if paths is not None:
            field = f"{where}.files"
        case _:
            return []
    listed = paths if isinstance(paths, list) else [paths]
    files = [file for path in listed for file in files_at(path, field)]
    if not files:
        raise SpecError(f"{field}: must name at least one file")
    return files


def files_at(path: str | SentFile, field: str) -> list[File]:
    """Return the files that a path or glob names. A file that exists is taken by its name, whatever is in that.

    Raises:
        SpecError: there is none; `field` begins the message.
    """
    if isinstance(path, SentFile):
        try:
            return [File(*path.opened(), sent=path)]
        except (AddressRefusedError, SentFileError) as error:
            raise SpecError(f"{field}: {error}") from None
    if os.path.isfile(path):
        return [File(fsspec.filesystem("file"), os.path.abspath(path))]
    try:
        filesystem, root = open_address(path)
    except AddressRefusedError as error:
        raise SpecError(f"{field}: {error}") from None
    except (ValueError, ImportError) as error:
        raise SpecError(f"{field} = {path!r}: not a path that can be opened: {error}") from None
    if filesystem.isfile(root):
        return [File(filesystem, root)]
    if any(mark in root for mark in "*?["):
        matches = sorted(match for match in filesystem.glob(_escaped(filesystem, root)) if filesystem.isfile(match))
        if not matches:
            raise SpecError(f"{field} = {path!r}: no file matches")
        return [File(filesystem, match) for match in matches]
    if not filesystem.exists(root):
        raise SpecError(f"{field} = {path!r}: no such file")
    raise SpecError(f"{field} = {path!r}: not a file; a folder's files are named by a glob such as {path}/*")


def _escaped(filesystem: fsspec.AbstractFileSystem, pattern: str) -> str:
    """The pattern, with the brackets of those of its folders that exist taken as they are."""
    folder, slash, rest = pattern.rpartition("/")
    while "[" in folder and not filesystem.isdir(folder):
        folder, _, name = folder.rpartition("/")
        rest = f"{name}/{rest}"
    return f"{glob.escape(folder)}{slash}{rest}"
