"""Computes digests of named tensors, to verify that a receiver got the weights that were sent.

The hash is XXH3, which is about as fast as memory. It detects failures of machines and code, but is not secure against
an adversary.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from torch import Tensor

THREADS = 4
"""Number of threads that hash tensors in the background. A core hashes about 8 GB/s, so that four are about as fast as
a GPU's link to main memory."""


class Contents(NamedTuple):
    """Identifies the contents of a set of named tensors."""

    tensors: int
    """Number of tensors."""
    digest: str
    """Digest of names, types, shapes and values, independent of the order of the tensors: 32 hexadecimal digits."""

    def differs_from(self, other: Contents) -> str:
        """Describe for an error message how these tensors differ from `other`."""
        if self.tensors != other.tensors:
            return f"{self.tensors:,} of {other.tensors:,} tensors"
        return f"{self.tensors:,} tensors with other values"


NOTHING = Contents(0, "0" * 32)
"""Contents of an empty set."""


class TensorDigest:
    """Computes the digest of tensors in background threads. Tensors must not change until `contents` returns."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(THREADS)
        self._lines: dict[str, Future[str]] = {}

    def add(self, name: str, tensor: Tensor) -> None:
        """Start hashing a tensor, which must be in CPU memory."""
        self._lines[name] = self._threads.submit(_format_line, name, tensor)

    def contents(self) -> Contents:
        """Wait for all hashes and return the contents of all tensors."""
        from xxhash import xxh3_128_hexdigest

        self._threads.shutdown()
        if not self._lines:
            return NOTHING
        lines = sorted(line.result() for line in self._lines.values())
        return Contents(len(lines), xxh3_128_hexdigest("\n".join(lines).encode()))


def compute_contents(tensors: Mapping[str, Tensor]) -> Contents:
    """Return the contents of tensors in CPU memory."""
    digest = TensorDigest()
    for name, tensor in tensors.items():
        digest.add(name, tensor)
    return digest.contents()


def _format_line(name: str, tensor: Tensor) -> str:
    import torch
    from xxhash import xxh3_128_hexdigest

    data = tensor.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    return f"{name} {tensor.dtype} {tuple(tensor.shape)} {xxh3_128_hexdigest(data.data)}"
