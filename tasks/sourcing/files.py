"""Lists the files of a source, which are opened with fsspec, and defines the entries that are read from them."""

from __future__ import annotations

import glob
import os
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

import fsspec

from tasks.config.loading import SpecError
from tasks.failures import one_line
from tasks.sourcing.compression import find_format
from tasks.sourcing.loader_specs import CsvLoader, HuggingFaceLoader, JsonlLoader, Loader, ParquetLoader
from tasks.storage.addresses import AddressRefusedError, open_address, read_checksum
from tasks.storage.sent_files import SentFile, SentFileError
from tasks.tables.content_digest import check_table, compute_sha256


@dataclass(frozen=True)
class Malformed:
    """An entry of a source that is not a row.

    Attributes:
        reason: the error of this entry, to show to the user.
        category: the reason without details of the entry. Rows are counted by category.
        value: the text of the entry.
    """

    reason: str
    category: str
    value: str


Item = dict[str, Any] | Malformed | None
"""An entry of a source: a row by column, a malformed entry, or None for an entry that is skipped (a blank line)."""


@dataclass(frozen=True)
class File:
    """A file that fsspec can open.

    Attributes:
        filesystem: its file system.
        path: its path in that file system.
        sent: the user's file if this is a copy of it, otherwise None.
    """

    filesystem: fsspec.AbstractFileSystem
    path: str
    sent: SentFile | None = None

    @property
    def name(self) -> str:
        """The path of the file for messages. For a copy, this is the path on the user's machine."""
        return str(self.sent or self.path)

    @property
    def is_local(self) -> bool:
        """True for a file on the local file system."""
        return isinstance(self.filesystem, fsspec.get_filesystem_class("file"))

    def digest(self) -> str:
        """Return the SHA-256 of a local file or of its copy, or for another file the checksum that its storage reports.

        Raises:
            ContentError: a table of this project whose rows do not match the digest in its footer.
            SentFileError: a copy that is missing, or of another file.
        """
        if self.sent is not None:
            self.sent.check()
            return self.sent.sha256
        if not self.is_local:
            return read_checksum(self.filesystem, self.path)
        check_table(Path(self.path))
        return compute_sha256(Path(self.path))


def get_endings(path: str) -> str:
    """Return the lower-case extensions of a file's name that select its reader, such as `.jsonl.gz`."""
    name = PurePosixPath(path.lower())
    return "".join(name.suffixes[-2:] if find_format(path) else name.suffixes[-1:])


def list_files(loader: Loader, where: str) -> list[File]:
    """Return the files that a loader names, in that order, with the files of a glob sorted. A generator has no files.

    Raises:
        SpecError: a path or glob matches no file. The message starts with `where`.
    """
    match loader:
        case JsonlLoader(path=paths) | ParquetLoader(path=paths) | CsvLoader(path=paths):
            field = f"{where}.path"
        case HuggingFaceLoader(files=paths) if paths is not None:
            field = f"{where}.files"
        case _:
            return []
    listed = paths if isinstance(paths, list) else [paths]
    files = [file for path in listed for file in find_files(path, field)]
    if not files:
        raise SpecError(f"{field}: must name at least one file")
    return files


def find_files(path: str | SentFile, field: str) -> list[File]:
    """Return the files that a path or glob names. An existing file of that exact name takes precedence.

    Raises:
        SpecError: there is no such file. The message starts with `field`.
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
    if _has_pattern(root):
        return [File(filesystem, match) for match in _find_matches(filesystem, root, f"{field} = {path!r}")]
    try:
        filesystem.info(root)
    except FileNotFoundError as error:  # which a server that does not answer causes, too
        cause = f": {one_line(error.__cause__)}" if error.__cause__ else ""
        raise SpecError(f"{field} = {path!r}: no such file{cause}") from None
    raise SpecError(f"{field} = {path!r}: not a file; a folder's files are named by a glob such as {path}/*")


def _find_matches(filesystem: fsspec.AbstractFileSystem, pattern: str, where: str) -> list[str]:
    """Return the files that match a glob, sorted. As in a shell, hidden ones match only if the pattern has a dot, too.

    Raises:
        SpecError: no file matches. The message starts with the last argument.
    """
    matches = [str(path) for path in filesystem.glob(_escape_folder(filesystem, pattern)) if filesystem.isfile(path)]
    visible = [path for path in matches if _count_hidden_names(path) <= _count_hidden_names(pattern)]
    if visible:
        return sorted(visible)
    if matches:
        name = sorted(matches)[0]
        raise SpecError(f"{where}: only hidden files match, such as {name}; begin the name in the pattern with a dot")
    raise SpecError(f"{where}: no file matches")


def _has_pattern(path: str) -> bool:
    return bool(set(path) & set("*?["))


def _count_hidden_names(path: str) -> int:
    return sum(name.startswith(".") and name not in (".", "..") for name in path.split("/"))


def _escape_folder(filesystem: fsspec.AbstractFileSystem, pattern: str) -> str:
    """Return the pattern with its longest beginning that is a folder escaped, for folders such as `run[1]`."""
    folder, slash, rest = pattern.rpartition("/")
    while _has_pattern(folder) and not filesystem.isdir(folder):
        folder, _, name = folder.rpartition("/")
        rest = f"{name}/{rest}"
    return f"{glob.escape(folder)}{slash}{rest}"
