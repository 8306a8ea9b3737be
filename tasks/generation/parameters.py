"""Counting a model's parameters from the headers of its files: no weight is read."""

from __future__ import annotations

import json
import math
import mmap
import struct
from pathlib import Path

from tasks.generation.models import LocalFolder, ModelError, ModelSpec, PackagedGguf

_MAGIC = int.from_bytes(b"GGUF", "little")
_NUMBERS = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a number, by GGUF's code of its type."""
_TEXT, _ARRAY = 8, 9


def count(spec: ModelSpec) -> int | None:
    """Return the number of parameters of the model that `spec` names; None where its files are not on this machine.

    Raises:
        ModelError: a file of weights is damaged or of another format.
    """
    match spec.source:
        case PackagedGguf() as packaged:
            return count_gguf(packaged.locate()) if packaged.folder() is not None else None
        case LocalFolder(path=path):
            return sum(count_safetensors(file) for file in sorted(Path(path).glob("*.safetensors")))
        case _:
            return None


def count_safetensors(file: Path) -> int:
    """Return the number of elements of all tensors of a safetensors file.

    Its first 8 bytes are the length of its header, which is JSON.
    """
    with file.open("rb") as opened:
        length = int.from_bytes(opened.read(8), "little")
        try:
            head = json.loads(opened.read(min(length, file.stat().st_size)))
            return sum(math.prod(tensor["shape"]) for name, tensor in head.items() if name != "__metadata__")
        except (ValueError, AttributeError, TypeError, KeyError) as error:
            raise ModelError(f"model: {file} is not a safetensors file: {error}") from None


def count_gguf(file: Path) -> int:
    """Return the number of elements of all tensors of a GGUF file (ggml's specification, versions 2 and 3).

    The package `gguf` takes seconds, because it makes objects of a whole vocabulary; here the vocabulary is skipped.
    """
    with file.open("rb") as opened:
        try:
            with mmap.mmap(opened.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _elements(_Head(content))
        except (ValueError, KeyError, struct.error) as error:
            raise ModelError(f"model: {file} is not a GGUF file of version 2 or 3: {error}") from None


def _elements(head: _Head) -> int:
    magic, version, tensors, values = head.numbers("<IIQQ")
    if magic != _MAGIC or version not in (2, 3):
        raise ValueError(f"it begins with {magic:#x}, version {version}")
    for _ in range(values):
        head.skip_text()
        head.skip_value(*head.numbers("<I"))
    total = 0
    for _ in range(tensors):
        head.skip_text()
        (dimensions,) = head.numbers("<I")
        total += math.prod(head.numbers(f"<{dimensions}Q"))
        head.numbers("<IQ")  # type and offset
    return total


class _Head:
    """The header of a GGUF file, read from its beginning."""

    def __init__(self, content: mmap.mmap) -> None:
        self._content = content
        self._at = 0

    def numbers(self, layout: str) -> tuple[int, ...]:
        """Read the next numbers, in the notation of `struct`."""
        values = struct.unpack_from(layout, self._content, self._at)
        self._at += struct.calcsize(layout)
        return values

    def skip_text(self) -> None:
        (length,) = self.numbers("<Q")
        self._at += length

    def skip_value(self, kind: int) -> None:
        if kind == _TEXT:
            self.skip_text()
        elif kind == _ARRAY:
            of, count = self.numbers("<IQ")
            if of in _NUMBERS:
                self._at += _NUMBERS[of] * count
            else:
                for _ in range(count):
                    self.skip_value(of)
        else:
            self._at += _NUMBERS[kind]
