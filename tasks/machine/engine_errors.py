"""The last error in what vLLM's processes print, and whether memory is the reason that an engine does not start.

vLLM compares the memory that is free when it starts with what it is asked for, and ends with one of these texts:

    Available memory on node 0 (0.4/2.9 GiB) on kv cache allocation is less than requested memory for kv (1.0 GiB). ...
    Free memory on device cuda:0 (9/79 GiB) on startup is less than desired GPU memory utilization (0.9, 71 GiB). ...

Texts about the share of a GPU that `gpu_memory_utilization` gives to an engine, in which its model or one request does
not fit, are about options: whatever others have, they come again.
"""

from __future__ import annotations

import re

from tasks.machine.memory_limit import MemoryLimitError, ShortOfMemoryError, watch

ERROR = re.compile(r"(?:^|\s)((?:[\w.]+\.)?(\w*(?:Error|Exception|Interrupt))): (\S.*)")
"""A line that names an error, with or without what vLLM's logger puts before it."""

WITHOUT_REASON = "EngineCore|EngineDead|Engine core|root cause"
"""Texts of errors that point at another error."""

_OF_MAIN_MEMORY = re.compile(r"Available memory on node|(?:can't|Cannot) allocate memory")
_OF_A_GPU = re.compile(r"Free memory on device|CUDA out of memory|CUDA error: out of memory")
_KV_CACHE = re.compile(r"/([\d.]+) GiB\) on kv cache allocation is less than requested memory for kv \(([\d.]+)")
"""Group 1 is the memory of the machine or its limit, group 2 that which the KV cache is to have, GiB."""


def last_error(text: str) -> tuple[str, str] | None:
    """Return the kind and the message of the last error in a text of many lines that is the reason of others."""
    errors = [match for line in text.splitlines() if (match := ERROR.search(line))]
    reasons = [match for match in errors if not re.search(WITHOUT_REASON, match[0])]
    return (reasons[-1][2], reasons[-1][3].strip()) if reasons else None


def memory_error(start: str, reason: str, kv_cache: str) -> MemoryLimitError | ShortOfMemoryError | None:
    """Return the error of an engine that did not start for memory; None: that is not the reason.

    It is a `MemoryLimitError` if the KV cache alone is larger than the memory. Else others have some of it, and may
    give it back.

    Args:
        start: what did not start, as the beginning of a sentence.
        reason: the last error that it printed.
        kv_cache: the option with the size of the KV cache in main memory.
    """
    if _OF_A_GPU.search(reason):
        return ShortOfMemoryError(f"{start}: {reason}")
    if not _OF_MAIN_MEMORY.search(reason):
        return None
    cannot = (sizes := _KV_CACHE.search(reason)) is not None and float(sizes[2]) > float(sizes[1])
    message = f"{start}: {reason.partition('. ')[0]}"  # what follows is vLLM's advice, by names that are not ours
    explained = watch().explain(message, f"lower {kv_cache}" if cannot else "")
    return MemoryLimitError(explained) if cannot else ShortOfMemoryError(explained)
