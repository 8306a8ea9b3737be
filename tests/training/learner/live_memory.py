"""Memory of the tensors that are alive, counted as torch makes them."""

import torch
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_iter


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of all tensors that operations make within it; files in the address space take no memory.

    Attributes:
        peak: the most that were alive at a time.
    """

    def __init__(self):
        super().__init__()
        self.peak = 0
        self._alive = {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = {storage._cdata for storage in _storages((args, kwargs))}
        result = function(*args, **(kwargs or {}))
        for storage in _storages(result):
            if storage._cdata not in given | self._alive.keys():
                self._count(storage)
        return result

    def _count(self, storage):
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))


def _storages(tree):
    return [
        leaf.untyped_storage()
        for leaf in tree_iter(tree)
        if isinstance(leaf, torch.Tensor) and leaf.device.type != "meta"
    ]
