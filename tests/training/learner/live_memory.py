"""Memory of the tensors that are alive, counted as torch makes them."""

from pathlib import Path

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that come to be within it; files in the address space take no memory.

    Attributes:
        peak: the most that were alive at a time.
    """

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for tensor in tree_iter(result):
            if isinstance(tensor, torch.Tensor) and tensor.device.type != "meta":
                self._count(tensor.untyped_storage())
        return result

    def _count(self, storage):
        if storage._cdata in self._alive or _is_in_file(storage.data_ptr()):
            return
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))


def _is_in_file(address):
    """Return whether the address is in a file of weights: these are the system's to read, and to forget."""
    lines = Path("/proc/self/maps").read_bytes().splitlines()
    files = (line.partition(b" ")[0].partition(b"-") for line in lines if line.endswith(b".safetensors"))
    return any(int(start, 16) <= address < int(stop, 16) for start, _, stop in files)
