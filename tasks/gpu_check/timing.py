"""Measures time and memory on a device that runs asynchronously: after it has finished its work."""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable

import torch


def synchronize() -> None:
    """Wait until the GPU, if there is one, has finished its work."""
    if torch.cuda.is_available():
        torch.cuda.synchronize()


def measure_seconds(call: Callable[[], object]) -> float:
    """Return the seconds that a call and its work on the GPU take."""
    synchronize()
    started = time.perf_counter()
    call()
    synchronize()
    return time.perf_counter() - started


def measure_median_seconds(call: Callable[[], object], repeats: int = 5) -> float:
    """Return the median duration of several calls, seconds; the first call is not counted."""
    measure_seconds(call)
    return statistics.median(measure_seconds(call) for _ in range(repeats))


def read_peak_bytes(*, reset: bool = False) -> int:
    """Return the peak number of bytes of tensors on the GPU since the last reset, or 0 without a GPU."""
    if not torch.cuda.is_available():
        return 0
    synchronize()
    peak = torch.cuda.max_memory_allocated()
    if reset:
        torch.cuda.reset_peak_memory_stats()
    return peak


def read_bytes_in_use() -> int:
    """Return the number of bytes of tensors on the GPU, or 0 without one."""
    return torch.cuda.memory_allocated() if torch.cuda.is_available() else 0


def release() -> None:
    """Release unused memory, so that one check does not affect the next."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
