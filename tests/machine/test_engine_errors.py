"""What vLLM prints where an engine does not start: the last error, and whether it is for memory."""

import pytest

from tasks.machine.engine_errors import find_last_error, make_memory_error
from tasks.machine.memory_limit import MemoryLimitError, ShortOfMemoryError

ADVICE = "Decrease --kv-cache-memory-bytes, VLLM_CPU_KVCACHE_SPACE, or reduce CPU memory used by other processes."
KV_CACHE = (
    "Available memory on node 0 ({}/{} GiB) on kv cache allocation is less than requested memory for kv ({} GiB). "
)
"""Text of vLLM's worker on CPUs, with sizes left out."""


def test_the_last_error_is_one_that_is_the_reason_of_others():
    assert find_last_error("nothing") is None
    log = (
        "(EngineCore pid=7) ERROR 11-29 16:08:21 [core.py:1510]     raise ValueError(\n"
        "(EngineCore pid=7) ERROR 11-29 16:08:21 [core.py:1510] ValueError: no room for 4 GiB\n"
        "(APIServer pid=6) RuntimeError: Engine core initialization failed. See root cause above.\n"
        "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n"
    )
    assert find_last_error(log) == ("ValueError", "no room for 4 GiB")


@pytest.mark.parametrize(
    ("reason", "kind"),
    [
        (KV_CACHE.format("0.66", "16.0", "1.0") + ADVICE, ShortOfMemoryError),
        (KV_CACHE.format("12.0", "16.0", "16.0") + ADVICE, ShortOfMemoryError),
        (KV_CACHE.format("12.0", "15.99", "16.0") + ADVICE, MemoryLimitError),
        ("RuntimeError: [enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: can't allocate memory: you tried to "
         "allocate 9 bytes. Error code 12 (Cannot allocate memory)", ShortOfMemoryError),
        ("OSError: [Errno 12] Cannot allocate memory", ShortOfMemoryError),
        ("ValueError: Free memory on device cuda:0 (1.2/79.1 GiB) on startup is less than desired GPU memory "
         "utilization (0.9, 71.2 GiB). Decrease GPU memory utilization.", ShortOfMemoryError),
        ("OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.", ShortOfMemoryError),
        ("ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization`.", type(None)),
        ("ValueError: To serve at least one request with the model's max seq len (4096), (4.0 GiB KV cache is needed, "
         "which is larger than the available KV cache memory (1.0 GiB).", type(None)),
        ("ValueError: no such dtype", type(None)),
    ],
)  # fmt: skip
def test_memory_that_others_have_may_come_back_and_more_than_there_is_does_not(reason, kind):
    error = make_memory_error("vLLM does not start", reason, "cpu_kv_cache_gib of the engine")
    assert type(error) is kind
    if error is not None:
        assert str(error).startswith("vLLM does not start: ")
        assert "\n" not in str(error)
    if reason.startswith("Available"):
        assert "; the largest processes were" in str(error)
        assert ADVICE not in str(error)
    if kind is MemoryLimitError:
        assert "; lower cpu_kv_cache_gib of the engine, or " in str(error)
