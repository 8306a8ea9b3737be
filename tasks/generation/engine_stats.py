"""Defines a vLLM stat logger that collects the statistics of an engine."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vllm.v1.metrics.loggers import StatLoggerBase

from tasks.generation.interface import EngineStatistics

if TYPE_CHECKING:
    from vllm.config import VllmConfig
    from vllm.v1.metrics.stats import IterationStats, SchedulerStats


class Recorder(StatLoggerBase):
    """A stat logger that updates its `statistics` in every iteration of the engine.

    The replicas of a data parallel engine report separately. Their requests are summed, and the KV cache usage is the
    maximum over replicas.
    """

    def __init__(self, vllm_config: VllmConfig | None = None, engine_index: int = 0) -> None:
        self.statistics = EngineStatistics()
        self._newest: dict[int, SchedulerStats] = {}

    def record(
        self,
        scheduler_stats: SchedulerStats | None,
        iteration_stats: IterationStats | None,
        mm_cache_stats: object = None,
        engine_idx: int = 0,
    ) -> None:
        """Record the statistics of one iteration of replica `engine_idx`. Called by vLLM."""
        if iteration_stats is not None:
            self.statistics.generated_tokens += iteration_stats.num_generation_tokens
            self.statistics.preemptions += iteration_stats.num_preempted_reqs
        if scheduler_stats is not None:
            self._newest[engine_idx] = scheduler_stats
            replicas = self._newest.values()
            self.statistics.running = sum(newest.num_running_reqs for newest in replicas)
            self.statistics.queued = sum(newest.num_waiting_reqs for newest in replicas)
            self.statistics.kv_cache_usage = max(newest.kv_cache_usage for newest in replicas)

    def log_engine_initialized(self) -> None:
        """Do nothing: nothing is logged at the start."""
