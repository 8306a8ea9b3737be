"""Adds to vLLM's workers the size of their KV cache, for engines that are started again with the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm.config import CacheConfig


class CacheMemory:
    """Base class of the extensions of vLLM's workers (option `worker_extension_cls`)."""

    cache_config: CacheConfig
    available_kv_cache_memory_bytes: float

    def kv_cache_memory(self) -> int:
        """Return the bytes of this worker's KV cache, which it was given, or which its profile of the GPU left."""
        return self.cache_config.kv_cache_memory_bytes or int(self.available_kv_cache_memory_bytes)
