"""Imported by the forkserver, so that every worker is born with SymPy and the checkers in memory."""

import ctypes
import gc
import sys
from collections.abc import Mapping
from multiprocessing import spawn
from pathlib import Path
from typing import Any

from tasks.verifiers import registry, worker

_LARGE_PAGE = 2 << 20
_MADV_COLLAPSE = 25

_prepare = spawn.prepare


def _prepare_worker(data: Mapping[str, Any]) -> None:
    """Every child would first run its owner's main module, which a worker has no use for.

    Under `pyflyte` that is an import of a second or two, each time that a worker is replaced.
    """
    if data["name"] == worker.NAME:
        data = {key: value for key, value in data.items() if not key.startswith("init_main_")}
    _prepare(data)


def _use_large_pages() -> None:
    """A fork copies the table of all pages, and its end takes it down: less than half the time where they are large.

    A worker that writes to one gets the 4 KiB that it writes to. Linux before 6.1 refuses, and forks as before.
    """
    if sys.platform != "linux":
        return
    madvise = ctypes.CDLL(None).madvise
    madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
    for line in Path("/proc/self/maps").read_text().splitlines():
        addresses, permissions, _, _, inode, *name = line.split()
        begin, end = (int(address, 16) for address in addresses.split("-"))
        begin, end = -(-begin // _LARGE_PAGE) * _LARGE_PAGE, end // _LARGE_PAGE * _LARGE_PAGE
        if permissions == "rw-p" and inode == "0" and name in ([], ["[heap]"]) and begin < end:
            madvise(begin, end - begin, _MADV_COLLAPSE)


spawn.prepare = _prepare_worker
registry.warm_up()
gc.collect()
gc.freeze()  # workers share what is in memory now, and their collections need not walk it: a tenth of a second each
_use_large_pages()
