"""Digests of named tensors, by which those who hand weights on know that the same ones arrived.

The hash is XXH3, at about the speed of memory: it finds faults of machines and of code, and is no protection from an
adversary.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

THREADS = 2
"""Threads that hash while tensors are handed on; one hashes about 10 GB/s."""


class Contents(NamedTuple):
    """The contents of a set of named tensors."""

    tensors: int
    """Number of tensors."""
    digest: str
    """Digest of their names, types, shapes and values, in any order; 32 hexadecimal digits."""

    def differs_from(self, other: Contents) -> str:
        """Return how these tensors differ from `other`, for a sentence."""
        if self.tensors != other.tensors:
            return f"{self.tensors:,} of {other.tensors:,} tensors"
        return f"{self.tensors:,} tensors with other values"


NOTHING = Contents(0, "0" * 32)
"""The contents of no tensors."""


class TensorDigest:
    """Digests tensors in the background while they are handed on; they may not change until `contents` returns."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS)
        self._lines: dict[str, Future[str]] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Begin to digest a tensor in main memory."""
        self._lines[name] = self._threads.submit(_line, name, tensor)

    def contents(self) -> Contents:
        """Wait until all tensors are digested, and return the digest of them together."""
        from xxhash import xxh3_128_hexdigest

        self._threads.shutdown()
        if not self._lines:
            return NOTHING
        lines = sorted(line.result() for line in self._lines.values())
        return Contents(len(lines), xxh3_128_hexdigest("\n".join(lines).encode()))


def contents_of(tensors: Mapping[str, Tensor]) -> Contents:
    """Return what named tensors in main memory contain."""
    digest = TensorDigest()
    for name, tensor in tensors.items():
        digest.add(name, tensor)
    return digest.contents()


def _line(name: str, tensor: Tensor) -> str:
    import torch
    from xxhash import xxh3_128_hexdigest

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{name} {tensor.dtype} {tuple(tensor.shape)} {xxh3_128_hexdigest(data.data)}"
