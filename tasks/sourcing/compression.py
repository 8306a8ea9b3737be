"""Decompresses files by their extension, and rejects files whose content does not match it."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import zipfile
import zlib
from collections.abc import Callable
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple

import pyarrow as pa


class Format(NamedTuple):
    """A compression format.

    Attributes:
        endings: the file extensions of the format.
        beginnings: the magic bytes. Every file starts with one of these.
        opened: returns the decompressed stream of a binary stream.
    """

    endings: tuple[str, ...]
    beginnings: tuple[bytes, ...]
    opened: Callable[[Any], Any]


def _make_arrow_reader(codec: str) -> Callable[[Any], Any]:
    return lambda stream: io.BufferedReader(pa.CompressedInputStream(pa.PythonFile(stream, mode="r"), codec))


def _open_only_member(stream: IO[bytes]) -> IO[bytes]:
    archive = zipfile.ZipFile(stream)
    members = [entry for entry in archive.infolist() if not entry.is_dir() and not _is_of_macos(entry.filename)]
    if len(members) != 1:
        raise ValueError(f"the archive contains {len(members)} files, but only one is supported; unpack it")
    return archive.open(members[0])


def _is_of_macos(name: str) -> bool:
    """Return True for the attributes of files and folders that the Finder of macOS adds to archives."""
    path = PurePosixPath(name)
    return path.parts[:1] == ("__MACOSX",) or path.name.startswith("._") or path.name == ".DS_Store"


FORMATS = {
    "gzip": Format((".gz",), (b"\x1f\x8b",), gzip.open),
    "bzip2": Format((".bz2",), (b"BZh",), bz2.open),
    "xz": Format((".xz", ".lzma"), (b"\xfd7zXZ\x00", b"\x5d\x00\x00"), lzma.open),
    "zstd": Format((".zst", ".zstd"), (b"\x28\xb5\x2f\xfd", b"\x50\x2a\x4d\x18"), _make_arrow_reader("zstd")),
    "lz4": Format((".lz4",), (b"\x04\x22\x4d\x18",), _make_arrow_reader("lz4")),
    "zip": Format((".zip",), (b"PK\x03\x04", b"PK\x05\x06"), _open_only_member),
}
"""The supported formats, by name."""

ERRORS = (
    OSError,
    EOFError,
    ValueError,
    RuntimeError,
    zlib.error,
    lzma.LZMAError,
    zipfile.BadZipFile,
    pa.ArrowException,
)
"""The errors that reading a damaged file raises."""


def find_format(path: str) -> str | None:
    """Return the name of the format of the file extension of `path`, or None if the file is not compressed."""
    return next((name for name, known in FORMATS.items() if path.lower().endswith(known.endings)), None)


def open_decompressed(stream: IO[bytes], path: str) -> IO[bytes]:
    """Return the content of the file `path`, decompressed if its extension is that of a compression format.

    Raises:
        ValueError: the first bytes of the file do not match its extension.
    """
    named = find_format(path)
    start = stream.read(6)
    stream.seek(0)
    held = next((name for name, known in FORMATS.items() if start.startswith(known.beginnings)), None)
    if held == named or not start:
        content: IO[bytes] = FORMATS[named].opened(stream) if named and start else stream
        return content
    if held is None:
        raise ValueError(f"its name says {named}, and its content is not {named}: the file is damaged or misnamed")
    raise ValueError(f"it is compressed by {held}; give it a name that ends in {FORMATS[held].endings[0]}")
