"""Opens the content of a source's files: decompressed, and with UTF-16 and UTF-32 converted to UTF-8."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

from tasks.sourcing.compression import open_decompressed
from tasks.sourcing.files import File

BLOCK = 1 << 18
"""Number of bytes that are read at a time."""

TAR_MAGIC = slice(257, 262)
"""Position of the word `ustar` in the header of a tar archive."""


@contextmanager
def open_text(file: File) -> Iterator[IO[bytes]]:
    """Open the content of a text file, decompressed and in UTF-8, with its byte order mark if it has one.

    Raises:
        ValueError: the content is not in the file's format of compression, is a tar archive, or, while it is read, is
            not in its encoding.
    """
    with file.filesystem.open(file.path, "rb") as stream:
        content = io.BufferedReader(open_decompressed(stream, file.path), BLOCK)  # type: ignore[type-var]
        if content.peek(TAR_MAGIC.stop)[TAR_MAGIC] == b"ustar":
            raise ValueError("it is a tar archive; unpack it and name its files")
        encoding = find_encoding(content.peek(4)[:4])
        yield content if encoding is None else io.BufferedReader(_Converted(content, encoding), BLOCK)


def find_encoding(start: bytes) -> str | None:
    """Return the encoding of a text with the given first four bytes if it is UTF-16 or UTF-32, otherwise None.

    It is recognised by the byte order mark, or by the zeros that are half or more of an ASCII character. PowerShell's
    `>` writes UTF-16.
    """
    if not any(start):
        return None
    encoding = json.detect_encoding(start)
    return None if encoding in ("utf-8", "utf-8-sig") else encoding


class _Converted(io.RawIOBase):
    """The UTF-8 of a stream of text in another encoding."""

    def __init__(self, stream: IO[bytes], encoding: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding, newline="")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        text = self._text.read(len(buffer) // 4)  # a character has at most 4 bytes
        content = text.encode(errors="surrogatepass")
        buffer[: len(content)] = content
        return len(content)
