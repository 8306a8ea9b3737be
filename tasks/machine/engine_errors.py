"""Finds the last error in the output of vLLM's processes, and detects engines that did not start for lack of memory.

vLLM compares the free memory at its start with the requested memory, and stops with one of these messages:

    Available memory on node 0 (0.4/2.9 GiB) on kv cache allocation is less than requested memory for kv (1.0 GiB). ...
    Free memory on device cuda:0 (9/79 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB). ...

Messages that the model or one request does not fit in the share of a GPU from `gpu_memory_utilization` are about
options. They occur again, whatever memory other processes use.
"""

from __future__ import annotations

import re

from tasks.machine.memory_limit import MemoryLimitError, ShortOfMemoryError, watch

ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt))): (\S.*)")
"""Matches a line that names an error, with or without the prefix of vLLM's logger."""

WITHOUT_REASON = "EngineCore|EngineDead|Engine core|root cause"
"""Matches error messages that only refer to another error."""

_OF_MAIN_MEMORY = re.compile(r"Available memory on node|(?:can't|Cannot) allocate memory")
_OF_A_GPU = re.compile(r"Free memory on device|CUDA out of memory|CUDA error: out of memory")
_KV_CACHE = re.compile(r"/([\d.]+) GiB\) on kv cache allocation is less than requested memory for kv \(([\d.]+)")
"""Group 1 is the memory of the machine or its limit, group 2 is the requested size of the KV cache, in GiB."""


def find_last_error(text: str) -> tuple[str, str] | None:
    """Return type and message of the last error in a text of many lines that does not only refer to another error."""
    errors = [match for line in text.splitlines() if (match := ERROR.search(line))]
    reasons = [match for match in errors if not re.search(WITHOUT_REASON, match[0])]
    return (reasons[-1][2], reasons[-1][3].strip()) if reasons else None


def make_memory_error(start: str, reason: str, kv_cache: str) -> MemoryLimitError | ShortOfMemoryError | None:
    """Return the error to raise for an engine that did not start, or None if `reason`, the last error that it
    printed, does not say that memory was lacking.

    It is a `MemoryLimitError` if the KV cache alone is larger than the memory. Otherwise other processes use some of
    the memory and may free it.

    Args:
        start: beginning of the error message, which says what did not start.
        reason: the last error that the engine printed.
        kv_cache: name of the option that sets the size of the KV cache in CPU memory.
    """
    if _OF_A_GPU.search(reason):
        return ShortOfMemoryError(f"{start}: {reason}")
    if not _OF_MAIN_MEMORY.search(reason):
        return None
    cannot = (sizes := _KV_CACHE.search(reason)) is not None and float(sizes[2]) > float(sizes[1])
    message = f"{start}: {reason.partition('. ')[0]}"  # the rest is vLLM's advice, which uses names of other options
    explained = watch().explain(message, f"lower {kv_cache}" if cannot else "")
    return MemoryLimitError(explained) if cannot else ShortOfMemoryError(explained)
