"""Writes versions of the weights into files that are mapped into memory once and used again for later versions.

A version is a second name (a hard link) of a buffer's file, which it gets when the file is complete:

    buffers/0, v00000006    in use
    buffers/1               free: nobody reads its version any more, so its second name was removed
    buffers/2, v00000007    in use

Readers see safetensors files, and whoever removes a version need not know about buffers. On a GPU machine each mapping
is registered with CUDA once, so that the GPU copies into the file itself, at the speed of its link. New files would
have to be allocated, filled with zeros and registered for every version.
"""

from __future__ import annotations

import contextlib
import json
import logging
import mmap
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import _TYPES
from torch import Tensor

from tasks.kubernetes.pod_templates import SHARED_MEMORY
from tasks.storage.durable import WriteError, write_whole
from tasks.storage.tensor_digest import Contents, TensorDigest
from tasks.training.learner.weight_files import BUFFERS

logger = logging.getLogger(__name__)

TYPES = {dtype: name for name, dtype in _TYPES.items()}
"""Names of torch's types in safetensors."""
ALIGNMENT = 8
"""The header of a safetensors file ends at a multiple of this number of bytes."""


@dataclass(frozen=True)
class Layout:
    """The layout of a safetensors file: https://huggingface.co/docs/safetensors.

    Attributes:
        header: the beginning of the file: the header's length, the header, and blanks.
        ranges: offsets in the file of each tensor's first byte and of the byte after its last, by its name.
        tensors: tensors on torch's `meta` device with the type and shape of each.
    """

    header: bytes
    ranges: Mapping[str, tuple[int, int]]
    tensors: Mapping[str, Tensor]

    @classmethod
    def build(cls, tensors: Mapping[str, Tensor]) -> Layout:
        """Return the layout of the file that safetensors' `save_file` writes for these tensors.

        Tensors with larger numbers come first, then they are sorted by name. So each begins at a multiple of the size
        of its numbers.
        """
        entries: dict[str, dict[str, object]] = {}
        ranges, end = {}, 0
        for name, tensor in sorted(tensors.items(), key=lambda item: (-item[1].itemsize, item[0])):
            start, end = end, end + tensor.nbytes
            ranges[name] = start, end
            entries[name] = {"dtype": TYPES[tensor.dtype], "shape": [*tensor.shape], "data_offsets": [start, end]}
        text = json.dumps(entries, separators=(",", ":"), ensure_ascii=False).encode()
        text += b" " * (-len(text) % ALIGNMENT)
        header = len(text).to_bytes(8, "little") + text
        return cls(
            header,
            {name: (len(header) + start, len(header) + stop) for name, (start, stop) in ranges.items()},
            {name: tensor.to("meta") for name, tensor in tensors.items()},
        )

    @property
    def size(self) -> int:
        """Size of the file in bytes."""
        return max((stop for _, stop in self.ranges.values()), default=len(self.header))


class WeightBuffers:
    """The buffers in a folder. There are as many as versions were ever in use at the same time.

    Args:
        folder: folder of the versions. Only this process writes into it.
        layout: layout of each version.
    """

    def __init__(self, folder: Path, layout: Layout) -> None:
        self.folder = folder
        self._layout = layout
        self._buffers: list[_Buffer] = []
        shutil.rmtree(folder / BUFFERS, ignore_errors=True)  # a rank that was killed leaves them; versions stay
        (folder / BUFFERS).mkdir(parents=True)

    @contextlib.contextmanager
    def open_version(self, path: Path) -> Iterator[Version]:
        """Yield a version to fill. Its file appears at `path` at the end of the block, or not at all if that raises.

        Args:
            path: path of the version, in the folder.

        Raises:
            WriteError: the memory or the disk is too full for a further buffer; or the file system does
                not support hard links, which can only be if `/dev/shm` is too small for the weights.
        """
        buffer = next((buffer for buffer in self._buffers if buffer.is_free()), None) or self._added()
        version = Version(buffer.tensors)
        yield version
        version.contents()
        with write_whole(path) as partial:
            try:
                os.link(buffer.path, partial)
            except OSError as error:
                raise WriteError(
                    f"{path} cannot be a second name of a file: {error.strerror}; make {SHARED_MEMORY} large enough "
                    "for three versions of the weights"
                ) from error

    def _added(self) -> _Buffer:
        buffer = _Buffer(self.folder / BUFFERS / str(len(self._buffers)), self._layout)
        self._buffers.append(buffer)
        return buffer

    @property
    def are_registered(self) -> bool:
        """True if every buffer is registered with CUDA."""
        return all(buffer.is_registered for buffer in self._buffers)

    def close(self) -> None:
        """Remove the buffers. Versions stay."""
        for buffer in self._buffers:
            buffer.close()
        shutil.rmtree(self.folder / BUFFERS, ignore_errors=True)


class Version:
    """A version that is being written.

    Args:
        tensors: the tensors in the file's mapping, which are overwritten.
    """

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self._tensors = tensors
        self._missing = set(tensors)
        self._digest = TensorDigest()

    def fill(self, tensors: Mapping[str, Tensor]) -> None:
        """Copy some of the tensors into the file, from any device, and start hashing them."""
        for name, tensor in tensors.items():
            mine = self._tensors[name]
            assert (mine.shape, mine.dtype) == (tensor.shape, tensor.dtype), f"{name} differs from the layout"
            mine.copy_(tensor, non_blocking=True)
        if torch.cuda.is_available():
            torch.cuda.synchronize()
        for name in tensors:
            self._digest.add(name, self._tensors[name])
        self._missing -= tensors.keys()

    def contents(self) -> Contents:
        """Return the contents of the file, once every tensor is filled."""
        assert not self._missing, f"not written: {sorted(self._missing)}"
        return self._digest.contents()


class _Buffer:
    """A file that is mapped into this process's memory and, in shared memory of a GPU machine, registered with CUDA.

    Attributes:
        path: the name that the file always has.
        tensors: the tensors in the mapping.
        is_registered: whether it is registered with CUDA.
    """

    def __init__(self, path: Path, layout: Layout) -> None:
        self.path = path
        with write_whole(path) as partial:
            partial.touch(mode=0o600)
            with partial.open("r+b") as file:
                # a write to the mapping of a file that finds no memory would kill the process
                os.posix_fallocate(file.fileno(), 0, layout.size)
                mapping = mmap.mmap(file.fileno(), layout.size)
        mapping[: len(layout.header)] = layout.header
        self._bytes = torch.frombuffer(mapping, dtype=torch.uint8)
        self.is_registered = path.is_relative_to(SHARED_MEMORY) and register(self._bytes)
        self.tensors = {
            name: self._bytes[slice(*layout.ranges[name])].view(tensor.dtype).view(tensor.shape)
            for name, tensor in layout.tensors.items()
        }

    def is_free(self) -> bool:
        """Return whether the file is not a version: then it has only this name."""
        return self.path.stat().st_nlink == 1

    def close(self) -> None:
        if self.is_registered:
            torch.cuda.cudart().cudaHostUnregister(self._bytes.data_ptr())


def register(memory: Tensor) -> bool:
    """Register memory with CUDA, so that GPUs copy into it and out of it directly; return whether that was done.

    Without a GPU, nothing is done. If CUDA refuses, a warning is logged, and copies go through memory of CUDA's own.

    Args:
        memory: a tensor in main memory.
    """
    if not torch.cuda.is_available():
        return False
    error = torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0)
    if int(error) == 0:
        return True
    logger.warning("%.1f GiB of shared memory are not registered with CUDA (error %d)", memory.nbytes / 2**30, error)
    with contextlib.suppress(RuntimeError):
        torch.zeros(1, device="cuda")  # CUDA would report the refusal once more, at the next kernel
    return False
